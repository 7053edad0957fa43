"""The records of a session's cells: a bounded list."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from gpumagic.cells.hooks import MAX_CELLS
from gpumagic.results import CellLog, CellMemory


class MemoryLog:
    """What the cells did to GPU memory, the newest `MAX_CELLS` of them."""

    def __init__(self, kept: int = MAX_CELLS) -> None:
        self._cells: deque[CellMemory] = deque(maxlen=kept)
        self._forgotten = 0

    def add(self, cell: CellMemory) -> None:
        if len(self._cells) == self._cells.maxlen:
            self._forgotten += 1
        self._cells.append(cell)

    def result(self, limits: Mapping[int, int], *, watching: bool) -> CellLog:
        """Return the records until now."""
        return CellLog(tuple(self._cells), self._forgotten, limits, watching)
