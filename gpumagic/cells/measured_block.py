"""Measure blocks of a script by a context manager; subclasses define `begin` and `end`."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

from gpumagic.errors import SpecError

_Block = TypeVar("_Block")
_Result = TypeVar("_Result")
_Self = TypeVar("_Self", bound="Measured[Any, Any]")


class Measured(Generic[_Block, _Result]):
    """A context manager that measures its blocks by `begin` and `end`, one at a time.

    It has the attributes of its `result`.
    """

    #: The message of `result` while no block has ended.
    unfinished = "the block has not ended"
    #: How a block is measured, and the attribute of a decorated function with its last result.
    statement, attribute = "with", "result"

    def __init__(self) -> None:
        #: The result of the last block; None if none has ended.
        self.finished: _Result | None = None
        #: What `begin` has returned for the block that runs, if one does.
        self._open: list[_Block] = []

    def begin(self) -> _Block:
        """Start measuring a block and return its state."""
        raise NotImplementedError

    def end(self, block: _Block, *, partial: bool) -> _Result:
        """Return the result of a block; ``partial`` if an exception ended it."""
        raise NotImplementedError

    def __enter__(self: _Self) -> _Self:
        if self._open:
            raise SpecError("this object measures a block already; make another one for this block")
        self.finished = None
        self._open.append(self.begin())
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.finished = self.end(self._open.pop(), partial=kind is not None)

    @property
    def result(self) -> _Result:
        """The result of the last block.

        Raises:
            RuntimeError: no block has ended.
        """
        if self.finished is None:
            raise RuntimeError(self.unfinished)
        return self.finished

    def __repr__(self) -> str:
        return f"<{self.unfinished}>" if self.finished is None else str(self.finished)

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of `result`; without one there is none."""
        if name.startswith("_") or self.finished is None:
            raise AttributeError(f"{name}: {self.unfinished}")
        return getattr(self.finished, name)
