"""What each line of a cell did to GPU memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gpumagic.results.base import Result
from gpumagic.results.memory import MemoryDelta

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True)
class LineMemory:
    """What a line did to one device's memory, all its runs together. Bytes, exact.

    What the functions that the line calls do counts to the line.
    """

    #: Change of the bytes held by live tensors: ``given - taken``, where those are counted.
    change: int = 0
    #: Highest allocated bytes while the line ran, above its start; the highest of its runs. Within
    #: one statement, the passes of a comprehension for example, it is one run.
    peak: int = 0
    #: Bytes that the line allocated, and bytes that were freed while it ran.
    given: int = 0
    taken: int = 0
    #: Of the bytes that the line allocated, those that were still allocated when the cell ended;
    #: None where not known. For the cell's lines and for a function's alike.
    stayed: int | None = None


@dataclass(frozen=True)
class SourceLines:
    """The lines of the cell, or of a function."""

    #: ``cell`` or the function's name.
    name: str
    #: The number of the first of ``lines``.
    first: int
    lines: tuple[str, ...]
    #: By CUDA ordinal and by line number; lines that did nothing to memory are absent.
    devices: Mapping[int, Mapping[int, LineMemory]] = field(default_factory=dict)
    #: Whether any of it ran.
    ran: bool = True
    #: Whether there is nothing in it to run.
    empty: bool = False


@dataclass(frozen=True)
class LineReport(Result):
    """What each line of a cell, and of the named functions, did to GPU memory."""

    cell: MemoryDelta
    sources: tuple[SourceLines, ...] = ()
    #: By CUDA ordinal, the change that belongs to no line of the cell: of other tasks while the
    #: cell awaited.
    elsewhere: Mapping[int, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        names = ", ".join(source.name for source in self.sources)
        return f"<LineReport: {names or self.cell.error or 'nothing'}>"

    def to_pandas(self) -> pandas.DataFrame:
        """A DataFrame with a row for each line that did something (needs pandas). Bytes."""
        import pandas

        rows = [
            (s.name, line, ordinal, s.lines[line - s.first].strip(), *vars(memory).values())
            for s in self.sources
            for ordinal, lines in s.devices.items()
            for line, memory in sorted(lines.items())
        ]
        figures = ["change", "peak", "given", "taken", "stayed"]
        frame = pandas.DataFrame(rows, columns=["source", "line", "device", "text", *figures])
        return frame.astype({"stayed": "Int64"}).set_index(["source", "line", "device"])
