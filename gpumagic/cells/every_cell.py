"""What is measured of every cell of a session: a record of each, and a line after some."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from time import perf_counter
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NamedTuple, TypeVar

from gpumagic.cells.hooks import CellHook, CellHooks
from gpumagic.system import text
from gpumagic.system.output import Output

if TYPE_CHECKING:
    from IPython.core.interactiveshell import ExecutionResult

_Record = TypeVar("_Record")

#: The most cells that are recorded.
MAX_CELLS = 10_000
#: The most characters of a first line; tables show fewer, and these on hover.
_LONGEST = 500


class Running(NamedTuple):
    """What is known of a cell when it starts."""

    source: str
    #: By `perf_counter`.
    started: float
    #: What `EveryCell.begin` has returned for it.
    begun: Any = None


class EveryCell(CellHook[Running], Generic[_Record]):
    """Measures the cells of one shell, from ``on`` to `off`.

    A cell that another cell runs is a part of that one. Cells that a front end runs for itself,
    outside the history, are not measured.
    Subclasses define ``on``, `begin` and `end`. ``show`` is called with each record that is to be
    shown.
    """

    #: The magic that turns it on, and what is done to cells then: for the line about a failure.
    magic: ClassVar[str]
    done: ClassVar[str]

    def __init__(self, hooks: CellHooks, show: Callable[[_Record], None]) -> None:
        self._hooks = hooks
        self._show = show
        #: The newest records.
        self.records: deque[_Record] = deque(maxlen=MAX_CELLS)

    @property
    def watching(self) -> bool:
        return self in self._hooks

    def off(self) -> None:
        """Stop measuring. The records stay."""
        self._hooks.remove(self)

    def begin(self) -> Any:
        """Begin to measure a cell, and return what `end` needs."""

    def end(self, cell: Running, number: int | None, *, failed: bool) -> None:
        """Measure what a cell did, and `keep` a record of it.

        ``number`` is its execution number; None where it was cancelled, so that IPython has none.
        """
        raise NotImplementedError

    def keep(self, record: _Record, *, shown: bool) -> None:
        """Add the record of a cell, and show it if it is to be ``shown``."""
        self.records.append(record)
        if shown:
            self._show(record)

    # --- as a hook -------------------------------------------------------------------------------

    def before(self, info: Any, outer: Running | None) -> Running | None:
        if outer is not None or not info.store_history:
            return None  # a part of the cell that runs it, or the front end's own
        begun = self.begin()
        return Running(info.raw_cell, perf_counter(), begun)

    def after(self, begun: Running | None, result: ExecutionResult | None) -> None:
        if begun is not None:
            number = None if result is None else result.execution_count
            self.end(begun, number, failed=result is None or not result.success)

    def failed(self, error: Exception) -> None:
        """Print a line about a failure of gpumagic, and stop measuring."""
        self.off()
        Output().print(
            f"{self.magic}: cells are not {self.done} any more ({text.named(error)}); "
            f"'{self.magic} on' starts again"
        )


def first_line(source: str) -> str:
    """Return the first line of a cell that is not blank, shortened."""
    head = source.lstrip().partition("\n")[0]  # a long cell is not split for its first line
    line = head.splitlines()[0].strip() if head else ""
    return text.shortened(line, _LONGEST)
