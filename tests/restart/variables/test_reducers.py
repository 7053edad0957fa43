"""Objects that cloudpickle refuses or changes: pickled, and made again by `constructors`."""

from __future__ import annotations

import array
import collections
import contextvars
import io
import struct
import sys
import threading
import types
import typing
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from gpumagic.restart.variables import reducers
from gpumagic.restart.variables.pickler import VariablePickler, VariableUnpickler
from gpumagic.restart.variables.tables import Tables


def _again(value: Any) -> Any:
    """The object that another process would have."""
    out = io.BytesIO()
    VariablePickler(out, Tables(), {}, {}).dump(value)
    return VariableUnpickler(io.BytesIO(out.getvalue()), lambda key: None).load()


class Slots:
    __slots__ = ("a", "b")

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(f"looked up {name}")


class Looks:
    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(f"looked up {name}")


@pytest.mark.parametrize(
    ("value", "holds"),
    [
        (threading.Lock(), lambda v: v.acquire(blocking=False)),
        (threading.RLock(), lambda v: v.acquire(blocking=False)),
        (types.MappingProxyType({"a": 1}), lambda v: dict(v) == {"a": 1} and not hasattr(v, "pop")),
        (struct.Struct("<I"), lambda v: v.pack(1) == b"\1\0\0\0"),
        (memoryview(bytearray(b"abc")), lambda v: bytes(v) == b"abc" and not v.readonly),
        (
            memoryview(array.array("i", [1, 2])).cast("B").cast("i", (2, 1)),
            lambda v: v.shape == (2, 1) and v.format == "i",
        ),
        (contextvars.ContextVar("v", default=3), lambda v: (v.name, v.get()) == ("v", 3)),
        (contextvars.ContextVar("w"), lambda v: v.get(None) is None),
        (sys.stdout, lambda v: v is sys.stdout),
        (io.StringIO("text"), lambda v: v.getvalue() == "text"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_it_is_made_again(value: Any, holds: Callable[[Any], bool]) -> None:
    made = _again(value)
    assert type(made) is type(value)
    assert holds(made)


def test_code_keeps_its_file() -> None:
    """Also that of functions within: the source is found by it, and tracebacks name it."""
    code = compile("def f():\n    return lambda: 1 / 0\n", "<a cell>", "exec")
    made = _again(code)
    assert made == code
    (function,) = [each for each in made.co_consts if isinstance(each, types.CodeType)]
    (within,) = [each for each in function.co_consts if isinstance(each, types.CodeType)]
    assert [made.co_filename, function.co_filename, within.co_filename] == ["<a cell>"] * 3


def test_views_of_a_dictionary_are_views_of_the_same_one() -> None:
    for original in ({"a": 1}, collections.OrderedDict(a=1)):
        of, keys, values, items = _again(
            [original, original.keys(), original.values(), original.items()]
        )
        of["b"] = 2
        assert ([*keys], [*values], [*items]) == (["a", "b"], [1, 2], [("a", 1), ("b", 2)])


def test_weak_references_refer_to_the_same_object() -> None:
    owner = Looks()
    referent, reference = _again([owner, weakref.ref(owner)])
    assert reference() is referent


def test_an_object_that_looks_attributes_up_is_not_asked() -> None:
    looks, slotted = Looks(), Slots()
    looks.a, slotted.b = 1, 2  # type: ignore[attr-defined]
    assert reducers.looks_attributes_up(Looks)
    assert not reducers.looks_attributes_up(threading.Thread)
    made, other = _again([looks, slotted])
    assert vars(made) == {"a": 1}
    assert other.b == 2
    with pytest.raises(RuntimeError, match="looked up a"):
        _ = other.a


def test_exceptions_with_their_causes() -> None:
    class StrangeError(Exception):
        def __init__(self, code: int, reason: str) -> None:
            super().__init__(f"{code}: {reason}")

    StrangeError.__module__ = "__main__"
    error = StrangeError(5, "why")
    error.__cause__ = ValueError("first")
    made = _again(error)
    assert str(made) == "5: why"
    assert isinstance(made.__cause__, ValueError)
    assert made.__suppress_context__


def test_a_type_of_the_notebook() -> None:
    made = typing.NewType("UserId", int)
    made.__module__ = "__main__"
    again = _again(made)
    assert again.__name__ == "UserId"
    assert again.__supertype__ is int
    assert again(3) == 3
