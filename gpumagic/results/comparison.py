"""Measurements compared: several timings, and the peaks of a cell with stored ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from gpumagic.render.blocks import DASH, Block, Cell, Column, Grid, dim_lines
from gpumagic.render.units import bytes_, seconds, share
from gpumagic.results.base import Result, data_frame
from gpumagic.results.timing import CudaTiming, Sample, at_most

if TYPE_CHECKING:
    import pandas

#: ``"noise"``: the difference is not larger than the noise.
Verdict = Literal["faster", "slower", "noise"]
Quantity = Literal["gpu", "wall"]


@dataclass(frozen=True)
class Compared:
    """A timing compared with the baseline."""

    name: str
    timing: CudaTiming
    #: The ratio of the medians: 2.0 is twice as long. None where the baseline's is 0.
    ratio: float | None = None
    #: The ratio's interval from the two medians' 95 % confidence intervals; None where there are
    #: too few repeats.
    interval: tuple[float, float] | None = None
    #: None for the baseline, and where there is no interval.
    verdict: Verdict | None = None


@dataclass(frozen=True)
class Comparison(Result):
    """Timings compared by ``%cudatime --compare``; the first is the baseline."""

    entries: tuple[Compared, ...]
    #: The times that ``ratio``, ``interval`` and ``verdict`` compare.
    quantity: Quantity
    notes: tuple[str, ...] = ()

    @property
    def baseline(self) -> str:
        """The name of the timing that the others are compared with."""
        return self.entries[0].name

    def sample(self, entry: Compared) -> Sample:
        """Return the times of an entry that are compared."""
        gpu = entry.timing.gpu
        return gpu if self.quantity == "gpu" and gpu is not None else entry.timing.wall

    def __iter__(self) -> Iterator[Compared]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    def __getitem__(self, key: str | int) -> Compared:
        """Return an entry by its name or its index.

        Raises:
            KeyError: no such name.
        """
        if isinstance(key, int):
            return self.entries[key]
        for entry in self.entries:
            if entry.name == key:
                return entry
        raise KeyError(key)

    def _blocks(self) -> list[Block]:
        slowest = max(self.sample(entry).median for entry in self)
        columns = (
            Column("Name", least=8),
            Column("GPU", "right"),
            Column(f"Compared with {self.baseline}", least=12, wrap=True),
            Column("Wall", "right", rank=1),
            Column("IQR", "right", rank=2),
        )
        rows = [_row(self, entry, slowest) for entry in self]
        return [Grid(columns, rows), *dim_lines(self.notes)]

    def __repr__(self) -> str:
        return f"<Comparison: {', '.join(entry.name for entry in self.entries)}>"

    def to_pandas(self) -> pandas.DataFrame:
        """Return a DataFrame with a row a timing: medians in seconds, ratios (needs pandas)."""
        rows = []
        for entry in self.entries:
            timing = entry.timing
            low, high = entry.interval or (None, None)
            rows.append(
                {
                    "name": entry.name,
                    "gpu": None if timing.gpu is None else timing.gpu.median,
                    "wall": timing.wall.median,
                    "cpu": timing.cpu.median,
                    "iqr": self.sample(entry).iqr,
                    "ratio": entry.ratio,
                    "ratio_low": low,
                    "ratio_high": high,
                    "verdict": entry.verdict,
                    "repeat": timing.repeat,
                    "loops": timing.loops,
                }
            )
        return data_frame(rows, index="name")


def _row(result: Comparison, entry: Compared, slowest: float) -> tuple[Cell, ...]:
    timing, compared = entry.timing, result.sample(entry)
    gpu = at_most(timing.gpu.median if timing.gpu else None, is_bound=timing.gpu_at_most)
    cells = {"gpu": Cell(gpu), "wall": Cell(seconds(timing.wall.median))}
    bar = compared.median / slowest if slowest > 0 else None
    cells[result.quantity] = Cell(cells[result.quantity].text, "strong", bar)
    is_base = entry is result.entries[0]
    return (
        Cell(entry.name),
        cells["gpu"],
        Cell("baseline", "dim") if is_base else _ratio(entry),
        cells["wall"],
        Cell(seconds(compared.iqr) if len(compared.all) > 1 else DASH, "dim"),
    )


def _ratio(entry: Compared) -> Cell:
    """Return how many times faster or slower an entry is, with the interval."""
    ratio = entry.ratio
    if not ratio:
        return Cell(DASH, "dim")
    low, high = entry.interval or (ratio, ratio)
    if entry.verdict == "noise":
        return Cell(f"within the noise ({_times(low)}\N{EN DASH}{_times(high)})", "dim")
    faster = ratio < 1
    if faster:
        ratio, low, high = 1 / ratio, 1 / high, 1 / low
    text = f"{_times(ratio)}\N{MULTIPLICATION SIGN} {'faster' if faster else 'slower'}"
    if _times(ratio) == _times(1.0):
        text = "same"
    if entry.interval is not None and {_times(low), _times(high)} != {_times(1.0)}:
        text += f" ({_times(low)}\N{EN DASH}{_times(high)})"
    return Cell(text, "dim" if entry.verdict is None else "good" if faster else "warn")


def _times(ratio: float) -> str:
    """Return a ratio with three significant digits, or as an integer from 100 on."""
    return f"{ratio:.{2 if ratio < 10 else 1 if ratio < 100 else 0}f}"


@dataclass(frozen=True)
class MemoryComparison(Result):
    """Peaks above the start in bytes, by CUDA ordinal: now and stored."""

    peaks: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def _blocks(self) -> list[Block]:
        columns = (Column("Device"), *(Column(c, "right") for c in ("Peak", "Stored", "Change")))
        rows = [
            (
                Cell(f"cuda:{ordinal}"),
                Cell(bytes_(now)),
                Cell(bytes_(stored)),
                Cell(share((now - stored) / stored, 1, sign=True) if stored else DASH),
            )
            for ordinal, (now, stored) in self.peaks.items()
        ]
        grid = [Grid(columns, rows)] if rows or not self.notes else []
        return [*grid, *dim_lines(self.notes)]
