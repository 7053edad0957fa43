"""How a call is left, and where the code of generators and coroutines pauses."""

from __future__ import annotations

from dataclasses import dataclass
from dis import opmap
from enum import Enum
from inspect import CO_ASYNC_GENERATOR, CO_COROUTINE, CO_GENERATOR
from types import CodeType, FrameType
from typing import Any, Generic, TypeVar

_Record = TypeVar("_Record")


class Left(Enum):
    """How a call is left."""

    #: By ``return`` or an exception.
    ENDED = 0
    #: It may resume.
    YIELDED = 1
    #: It waits for what it awaits.
    AWAITS = 2


@dataclass(frozen=True)
class Paused(Generic[_Record]):
    """A call that ``await`` or ``yield`` has paused."""

    code: CodeType
    #: The index of its last instruction.
    last: int
    statement: int
    record: _Record

    def is_resumed(self, frame: FrameType) -> bool:
        """Return whether a frame with the same id is this call's: a new one is before there."""
        # Some versions of Python have advanced; and after an exception thrown into what it awaits.
        return self.code is frame.f_code and frame.f_lasti >= self.last


def way_of_pausing(code: CodeType, value: Any) -> Left:
    """Return how a generator or coroutine is left that pauses with ``value``."""
    flags = code.co_flags
    # What an asynchronous generator yields is wrapped, in contrast to what it awaits with.
    is_yield = flags & CO_GENERATOR or (
        flags & CO_ASYNC_GENERATOR and _name_of_type(type(value)) == "async_generator_wrapped_value"
    )
    return Left.YIELDED if is_yield else Left.AWAITS


#: The name of a type; a metaclass may have code of its own for the attribute.
_name_of_type: Any = type.__dict__["__name__"].__get__

PAUSES = CO_COROUTINE | CO_GENERATOR | CO_ASYNC_GENERATOR


def pauses_of(code: CodeType) -> frozenset[int]:
    """Return the places in a code object at which its frame is while it is paused."""
    if not code.co_flags & PAUSES:
        return frozenset()
    instructions, found = code.co_code, set[int]()
    for at in range(0, len(instructions), 2):
        if instructions[at] == opmap["YIELD_VALUE"]:
            found |= {at, at + 2}  # some versions of Python have advanced
        elif instructions[at] == opmap.get("YIELD_FROM"):
            found.add(at - 2)  # Python 3.10 runs it again
    return frozenset(found)
