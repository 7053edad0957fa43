"""`gpumagic.system.introspection`: foreign objects are read without running their code.

With all kinds of objects at once: tests/magics/gpumem/test_foreign_objects.py.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from gpumagic.system import introspection


def foreign_class(ran: list[str]) -> Any:
    """A class that notes every use of it; in a function, so that pytest does not inspect it."""

    def noting(name: str) -> Any:
        return lambda *_: ran.append(name)

    class Meta(type):
        __getattribute__ = noting("Meta.__getattribute__")
        __instancecheck__ = noting("Meta.__instancecheck__")
        __subclasscheck__ = noting("Meta.__subclasscheck__")

    class Base:
        of_class = 1

    class Foreign(Base, metaclass=Meta):
        __slots__ = ("in_slot",)
        __getattribute__ = noting("__getattribute__")

    return Foreign


def test_a_class_and_its_object() -> None:
    ran: list[str] = []
    kind = foreign_class(ran)
    made = object.__new__(kind)
    object.__setattr__(made, "in_slot", 8)
    ran.clear()
    base = introspection.mro(kind)[1]
    assert introspection.derives(kind, base)
    assert introspection.is_a(made, int, base)
    assert not introspection.is_a(made, int)
    assert not introspection.is_a(7, kind)
    assert introspection.name_of(kind) == "Foreign"
    assert introspection.find(kind, "of_class") == 1
    assert introspection.find(kind, "nothing") is None
    assert introspection.slot(made, "in_slot") == 8
    assert introspection.slot(made, "nothing") is None
    assert introspection.slot(made, "of_class") is None  # no descriptor made in C
    assert ran == []


def test_a_file_that_is_no_text() -> None:
    pretending = ModuleType("pretending")
    pretending.__file__ = 7  # type: ignore[assignment]
    assert introspection.module_file(pretending) is None
