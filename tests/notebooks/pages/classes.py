# A class hierarchy over several cells: abstract bases, properties, mixins, slots, a class redefined.
# %%
from abc import ABC, abstractmethod
from typing import Generic, NamedTuple, Protocol, TypeVar
import enum

class Shape(ABC):
    registry = {}

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        Shape.registry[cls.__name__] = cls

    @abstractmethod
    def area(self): ...

    def __lt__(self, other):
        return self.area() < other.area()

    def __repr__(self):
        return f"{type(self).__name__}({self.area():g})"
# %%
class Square(Shape):
    def __init__(self, side):
        self.side = side

    def area(self):
        return self.side ** 2

    @property
    def diagonal(self):
        return round(2 ** 0.5 * self.side, 3)

sq = Square(3)
sq
# %%
class Named:
    def __init__(self, *args, name="?", **kw):
        super().__init__(*args, **kw)
        self.name = name

class Tile(Named, Square):
    __slots__ = ("color",)
    count = 0

    def __init__(self, *args, **kw):
        super().__init__(*args, **kw)
        type(self).count += 1

    @classmethod
    def unit(cls):
        return cls(1, name="unit")

    @staticmethod
    def sort(tiles):
        return sorted(tiles)

tiles = [Tile(2, name="two"), Tile.unit()]
tiles[0].color = "red"
tiles
# %%
Tile.sort(tiles), Tile.count, tiles[0].color, tiles[1].diagonal
# %%
Shape.registry
# %%
[c.__name__ for c in Tile.__mro__], isinstance(tiles[0], Shape), Shape.registry["Tile"] is type(tiles[1])
# %%
class Color(enum.IntFlag):
    RED = enum.auto()
    BLUE = enum.auto()

class Point(NamedTuple):
    x: int
    y: int = 0

    @property
    def norm(self):
        return abs(self.x) + abs(self.y)

T = TypeVar("T")
class Stack(Generic[T]):
    def __init__(self):
        self.items: list[T] = []

    def push(self, item: T) -> "Stack[T]":
        self.items.append(item)
        return self

stack = Stack[Point]().push(Point(1)).push(Point(2, -3))
stack.items, Color.RED | Color.BLUE
# %%
old = sq
class Square(Shape):
    def __init__(self, side):
        self.side = side

    def area(self):
        return 10 * self.side

sq = Square(3)
old, sq, type(old) is Square, Shape.registry["Square"] is Square
# %%
old, sq, type(old) is Square, old.diagonal, Tile.__base__, isinstance(Tile(4), type(old))
# %%
class Meta(type):
    def __call__(cls, *args):
        if not hasattr(cls, "one"):
            cls.one = super().__call__(*args)
        return cls.one

class Settings(metaclass=Meta):
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return f"<{name}>"

settings = Settings()
settings.theme
# %%
Settings() is settings, settings.other, Color(3) is Color.RED | Color.BLUE, stack.items[1].norm
# %%
try:
    Shape()
except TypeError as e:
    print(type(e).__name__, "abstract" in str(e))
