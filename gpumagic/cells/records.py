"""What is kept of a session's cells: records, the first line of each, and its number."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

_Record = TypeVar("_Record")

#: The most cells that are recorded.
MAX_CELLS = 10_000
#: The most characters of a first line; tables show fewer, and these on hover.
_LONGEST = 500


class CellRecords(Generic[_Record]):
    """The newest records of cells."""

    def __init__(self, most: int = MAX_CELLS) -> None:
        self._records: deque[_Record] = deque(maxlen=most)
        #: The number of older records that were dropped.
        self.dropped = 0

    def __iter__(self) -> Iterator[_Record]:
        return iter(self._records)

    def add(self, record: _Record) -> None:
        """Add a record; drop the oldest if there are too many."""
        self.dropped += len(self._records) == self._records.maxlen
        self._records.append(record)


def first_line(source: str) -> str:
    """Return the first line of a cell that is not blank, shortened."""
    head = source.lstrip().partition("\n")[0]  # a long cell is not split for its first line
    line = head.splitlines()[0].strip() if head else ""
    return line if len(line) <= _LONGEST else line[: _LONGEST - 1] + "…"


def keep_numbers(compiler: Any) -> Callable[[], None]:
    """Keep the number of each cell to come by the file name of its code, as IPython 8 does.

    Returns what undoes it.
    """
    numbers: dict[str, int] = {}
    original = compiler.cache

    def cache(transformed_code: str, number: int = 0, raw_code: str | None = None) -> str:
        name: str = original(transformed_code, number, raw_code)
        numbers[name] = number
        return name

    def undo() -> None:
        del compiler.cache, compiler._filename_map

    compiler.cache, compiler._filename_map = cache, numbers
    return undo
