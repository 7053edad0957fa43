"""`gpumagic.system.introspection`: foreign objects are read without running their code."""

from __future__ import annotations

import collections
import sys
from collections.abc import Iterator
from types import FrameType, ModuleType
from typing import Any

import pytest

from gpumagic.system import introspection

#: The methods of foreign classes that have run.
RAN: list[str] = []


@pytest.fixture(autouse=True)
def _no_foreign_code_runs() -> Iterator[None]:
    RAN.clear()
    yield
    assert RAN == []


def hostile_type() -> Any:
    """A class that records every use of it; in a function, so that pytest does not inspect it."""

    class Meta(type):
        def __getattribute__(cls, name: str) -> Any:
            RAN.append(name)
            return type.__getattribute__(cls, name)

        def __instancecheck__(cls, instance: Any) -> bool:
            RAN.append("__instancecheck__")
            return False

        def __subclasscheck__(cls, subclass: type) -> bool:
            RAN.append("__subclasscheck__")
            return False

    class Base:
        of_class = 1

    class Hostile(Base, metaclass=Meta):
        __slots__ = ("in_slot",)

        def __getattribute__(self, name: str) -> Any:
            RAN.append(name)
            return object.__getattribute__(self, name)

        def __eq__(self, other: object) -> bool:
            RAN.append("__eq__")
            return True

        def __hash__(self) -> int:
            RAN.append("__hash__")
            return 0

    return Hostile


@pytest.fixture
def hostile() -> Any:
    made = object.__new__(hostile_type())
    object.__setattr__(made, "value", 7)
    object.__setattr__(made, "in_slot", 8)
    RAN.clear()
    return made


def test_types(hostile: Any) -> None:
    kind = type(hostile)
    base = introspection.mro(kind)[1]
    assert introspection.derives(kind, base)
    assert introspection.is_a(hostile, int, base)
    assert not introspection.is_a(hostile, int)
    assert not introspection.is_a(7, kind)
    assert [introspection.name_of(each) for each in introspection.mro(kind)] == [
        "Hostile",
        "Base",
        "object",
    ]
    assert introspection.name_of(kind) == "Hostile"
    assert introspection.module_of(kind) == __name__
    assert "in_slot" in introspection.class_attributes(kind)
    assert introspection.find(kind, "of_class") == 1
    assert introspection.find(kind, "nothing") is None


def test_a_type_whose_module_is_no_text() -> None:
    odd = type("Odd", (), {"__module__": 7})
    assert introspection.module_of(odd) == ""


def test_attributes(hostile: Any) -> None:
    assert introspection.slot(hostile, "in_slot") == 8
    assert introspection.slot(hostile, "nothing") is None
    assert introspection.slot(hostile, "of_class") is None  # no descriptor made in C


class HostileDict(dict[Any, Any]):
    def items(self) -> Any:
        RAN.append("items")

    def __iter__(self) -> Any:
        RAN.append("__iter__")


def test_the_items_of_mappings() -> None:
    made = HostileDict({"a": 1, 2: "b"})
    assert introspection.names(made) == [("a", 1)]
    assert introspection.names(collections.UserDict(a=1)) == []


def test_modules() -> None:
    class Lazy(ModuleType):
        def __getattribute__(self, name: str) -> Any:
            RAN.append(name)
            return super().__getattribute__(name)

    lazy = Lazy("lazy")
    assert introspection.module_attributes(lazy)["__name__"] == "lazy"
    assert introspection.module_file(lazy) is None
    assert introspection.module_file(pytest) == pytest.__file__
    assert introspection.module_attributes("no module") == {}
    pretending = ModuleType("pretending")
    pretending.__file__ = 7  # type: ignore[assignment]
    assert introspection.module_file(pretending) is None


def caller(*_: Any) -> FrameType:
    return sys._getframe(1)


def function() -> FrameType:
    local = "value"
    return caller(local)


def test_the_variables_of_a_frame() -> None:
    assert introspection.local_variables(function()) == [("local", "value")]
    namespace: dict[str, Any] = {"caller": caller}
    exec("x = 1\nframe = caller()", namespace)
    assert ("x", 1) in introspection.local_variables(namespace["frame"])


class HostileError(Exception):
    def __str__(self) -> str:
        RAN.append("__str__")
        return ""

    def __getattribute__(self, name: str) -> Any:
        RAN.append(name)
        return super().__getattribute__(name)


class Text(str):
    def __str__(self) -> str:
        RAN.append("__str__")
        return ""


def test_exceptions() -> None:
    first, second, third = HostileError(Text("first"), 7, "more"), HostileError(), ValueError()
    try:
        try:
            raise first
        except HostileError:
            raise second from third
    except HostileError:
        pass
    assert introspection.message(first) == "first\nmore"
    assert introspection.message(second) == ""
    found = introspection.traceback(second)
    assert found is not None
    assert found.tb_frame.f_code.co_name == "test_exceptions"
    assert [id(each) for each in introspection.linked(second)] == [*map(id, (second, third, first))]
    assert [id(e) for e in introspection.linked(second, shown=True)] == [*map(id, (second, third))]
    third.__cause__ = second  # a circle
    assert len([*introspection.linked(second)]) == 3


@pytest.mark.skipif(sys.version_info < (3, 11), reason="exception groups need Python 3.11")
def test_the_exceptions_of_a_group() -> None:
    one, two = ValueError(1), KeyError(2)
    group = BaseExceptionGroup("several", [one, two])  # noqa: F821
    assert {*map(id, introspection.linked(group))} == {*map(id, (group, one, two))}
