"""The records of a session's cells: pure, a bounded list and what is read from it."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from gpumagic.results import CellLog, CellMemory

#: So many cells are remembered; the oldest are forgotten first.
KEPT = 10_000
_LONGEST = 80


class MemoryLog:
    """What the cells did to GPU memory, the newest `KEPT` of them."""

    def __init__(self, kept: int = KEPT) -> None:
        self._cells: deque[CellMemory] = deque(maxlen=kept)
        self._forgotten = 0

    def add(self, cell: CellMemory) -> None:
        if len(self._cells) == self._cells.maxlen:
            self._forgotten += 1
        self._cells.append(cell)

    def result(self, limits: Mapping[int, int], *, watching: bool) -> CellLog:
        """The records until now."""
        return CellLog(tuple(self._cells), self._forgotten, limits, watching)


def first_line(source: str) -> str:
    """The first line of a cell that says something, short."""
    head = source.lstrip().partition("\n")[0]  # a long cell is not split for its first line
    line = head.splitlines()[0].strip() if head else ""
    return line if len(line) <= _LONGEST else line[: _LONGEST - 1] + "…"
