"""Something before every cell of a shell and something after it, and both taken back.

A cell that begins while another one is running is a part of that one. What every record of a cell
has, of its time or of its memory, is here too: its first line, and how many are kept.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

_Begun = TypeVar("_Begun")

#: So many cells are remembered; the oldest are forgotten first.
KEPT = 10_000
_LONGEST = 80


class CellHooks(Generic[_Begun]):
    """``begin(info)`` before each cell; what it returned, and the result, for ``end`` after it.

    ``failed`` is called with an exception of theirs, which never reaches the user's cell: the hooks
    are off by then.
    """

    def __init__(
        self,
        shell: Any,
        begin: Callable[[Any], _Begun],
        end: Callable[[_Begun, Any], None],
        failed: Callable[[Exception], None],
    ) -> None:
        self._events = shell.events
        self._begin = begin
        self._end = end
        self._failed = failed
        #: IPython's ExecutionInfo, known again at the cell's end, and what `begin` returned.
        self._running: tuple[Any, _Begun] | None = None
        self.attached = False

    def attach(self) -> None:
        """Begin with the next cell. Attached already: nothing."""
        if not self.attached:
            self._events.register("pre_run_cell", self._before)
            self._events.register("post_run_cell", self._after)
            self.attached = True

    def detach(self) -> None:
        """Take both hooks back."""
        self.attached = False
        self._running = None
        for event, hook in (("pre_run_cell", self._before), ("post_run_cell", self._after)):
            if hook in self._events.callbacks[event]:
                self._events.unregister(event, hook)

    def _before(self, info: Any) -> None:
        if self._running is not None:
            return
        try:
            self._running = info, self._begin(info)
        except Exception as error:
            self._step_aside(error)

    def _after(self, result: Any) -> None:
        running = self._running
        # A cell that was cancelled has no result; an empty one never began.
        if running is None or (result is not None and result.info is not running[0]):
            return
        self._running = None
        if result is None:
            return
        try:
            self._end(running[1], result)
        except Exception as error:
            self._step_aside(error)

    def _step_aside(self, error: Exception) -> None:
        self.detach()
        self._failed(error)


def first_line(source: str) -> str:
    """The first line of a cell that says something, short."""
    head = source.lstrip().partition("\n")[0]  # a long cell is not split for its first line
    line = head.splitlines()[0].strip() if head else ""
    return line if len(line) <= _LONGEST else line[: _LONGEST - 1] + "…"
