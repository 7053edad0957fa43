"""Which call of a source has the time: one at most at each moment, so that none counts twice."""

from __future__ import annotations

from typing import Generic, TypeVar

_Call = TypeVar("_Call")


class CurrentCalls(Generic[_Call]):
    """The calls of one source that run or wait in an ``await``.

    The innermost that runs is the current one; where none runs, the one that waits and was entered
    last: of coroutines that await each other, that is the one on which the others wait.
    """

    def __init__(self) -> None:
        #: In the order in which they were entered last.
        self._entered: dict[_Call, None] = {}
        self._running: list[_Call] = []
        self.current: _Call | None = None

    def is_running(self, call: _Call) -> bool:
        """Return whether a call is the innermost one that runs."""
        return bool(self._running) and self._running[-1] is call

    def enter(self, call: _Call) -> None:
        """Begin a call, or resume it."""
        self._entered.pop(call, None)
        self._entered[call] = None
        self._running.append(call)
        self.current = call

    def leave(self, call: _Call, *, awaits: bool) -> None:
        """End or pause a call that runs; ``awaits``: it waits in an ``await``."""
        self._running.remove(call)
        if not awaits:
            del self._entered[call]
        self.current = self._running[-1] if self._running else next(reversed(self._entered), None)

    def waiting(self) -> _Call | None:
        """Return the current call if none runs."""
        return None if self._running else self.current
