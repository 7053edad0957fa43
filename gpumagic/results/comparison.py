"""Several timings compared, and whether they differ by more than their noise."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from gpumagic.render.blocks import DASH, Block, Cell, Column, Grid, dim_lines
from gpumagic.render.units import seconds
from gpumagic.results.base import Result, data_frame
from gpumagic.results.sample import Sample
from gpumagic.results.timing import CudaTiming, time_unit, without_outliers
from gpumagic.system.text import harmless, plural

if TYPE_CHECKING:
    import pandas

    from gpumagic.render.plots import Plot

#: ``"noise"``: the difference is not larger than the noise.
Verdict = Literal["faster", "slower", "noise"]
Quantity = Literal["gpu", "wall"]

#: A ratio that is shown as less than this, up or down, is dim, however certain it is.
_SMALL = 1.02


@dataclass(frozen=True)
class Compared:
    """A timing compared with the baseline."""

    name: str
    timing: CudaTiming
    #: The median of the ratios of each repeat to each of the baseline's: 2.0 is twice as long.
    #: None where one is 0, and where of too few repeats the medians say the opposite.
    ratio: float | None = None
    #: The ratio's 95 % confidence interval; None where there are too few repeats.
    interval: tuple[float, float] | None = None
    #: None for the baseline, and where there are too few repeats.
    verdict: Verdict | None = None


@dataclass(frozen=True)
class Comparison(Result):
    """Timings compared by ``%cudatime --compare``; the first is the baseline."""

    entries: Sequence[Compared]
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

    def plot(self) -> Plot:
        """Return a picture: a row a timing, its repeats as dots, its quartiles as a bar.

        Repeats far above the others are counted below the name, not drawn.

        Raises:
            DependencyError: matplotlib is not installed.
        """
        from gpumagic.render import colors, plots

        plot = plots.new_plot(3)
        samples = [self.sample(entry) for entry in self]
        scale, unit = time_unit(samples)
        axes = plot.figure.subplots()
        highest = max(map(without_outliers, samples)) / scale
        names: list[str] = []
        for row, (entry, sample) in enumerate(zip(self, samples, strict=True)):
            by_verdict = {"faster": colors.GOOD, "slower": colors.BAD}
            baseline = colors.SERIES[0]
            verdict = "" if _is_small(entry) else str(entry.verdict)
            color = baseline if row == 0 else by_verdict.get(verdict, colors.NEUTRAL)
            values = [value / scale for value in sample.all]
            low, high = (quartile / scale for quartile in sample.quartiles)
            axes.barh(row, high - low, left=low, height=0.5, color=color, alpha=0.3)
            figure = f"{seconds(sample.median)} "
            axes.text(sample.median / scale, row - 0.27, figure, ha="center", va="bottom")
            axes.plot([sample.median / scale] * 2, [row - 0.25, row + 0.25], color=color, lw=2)
            # One below the other in the order of the runs, so that a drift shows as a slope.
            steps = max(len(values) - 1, 1)
            heights = [
                row + 0.2 - 0.4 * i / steps if steps > 1 else row for i in range(len(values))
            ]
            drawn = [(v, y) for v, y in zip(values, heights, strict=True) if v <= highest]
            axes.plot(*zip(*drawn, strict=True), ".", color=color, ms=4)
            # matplotlib parses text between dollar signs as a formula.
            names.append(harmless(entry.name).replace("$", r"\$"))
            if beyond := len(values) - len(drawn):
                names[-1] += f"\n{plural(beyond, 'repeat')} beyond,\nup to {seconds(sample.worst)}"
        axes.set_yticks(range(len(samples)), names)
        axes.invert_yaxis()
        axes.set_xlim(0, highest * 1.05 or None)
        name = {"gpu": "GPU", "wall": "wall"}[self.quantity]
        axes.set(xlabel=f"{name} time per loop ({unit})")
        return plot


def _row(result: Comparison, entry: Compared, slowest: float) -> tuple[Cell, ...]:
    timing = entry.timing
    compared = result.sample(entry)
    bar = compared.median / slowest if slowest > 0 else None
    figures = {"gpu": seconds(timing.gpu.median if timing.gpu else None)}
    figures["gpu"] = "≤ " * timing.gpu_at_most + figures["gpu"]
    figures["wall"] = seconds(timing.wall.median)
    cells = {
        name: Cell(figure, "strong" if name == result.quantity else "")
        for name, figure in figures.items()
    }
    cells[result.quantity] = Cell(figures[result.quantity], "strong", bar)
    cells["ratio"] = _ratio(entry)
    if entry is result.entries[0]:
        cells["ratio"] = Cell("baseline", "dim")
    return (
        Cell(entry.name),
        cells["gpu"],
        cells["ratio"],
        cells["wall"],
        Cell(seconds(compared.iqr) if len(compared.all) > 1 else DASH, "dim"),
    )


def _ratio(entry: Compared) -> Cell:
    """Return how many times faster or slower an entry is, with the 95 % confidence interval."""
    ratio = entry.ratio
    if not ratio:
        return Cell(DASH, "dim")
    low, high = entry.interval or (ratio, ratio)
    if entry.verdict == "noise":  # no ratio, thus no direction: that of the medians may be another
        return Cell(f"within the noise ({_times(low)}\N{EN DASH}{_times(high)})", "dim")
    faster = ratio < 1
    if faster:
        ratio, low, high = 1 / ratio, 1 / high, 1 / low if low else math.inf
    same = _times(1.0)
    text = f"{_times(ratio)}\N{MULTIPLICATION SIGN} {'faster' if faster else 'slower'}"
    if _times(ratio) == same:
        text = "same"
    if entry.interval is not None and {_times(low), _times(high)} != {same}:
        text += f" ({_times(low)}\N{EN DASH}{_times(high)})"
    if entry.verdict is None or _is_small(entry):
        return Cell(text, "dim")
    return Cell(text, "good" if faster else "warn")


def _is_small(entry: Compared) -> bool:
    ratio = entry.ratio
    return ratio is not None and ratio > 0 and float(_times(max(ratio, 1 / ratio))) < _SMALL


def _times(ratio: float) -> str:
    """Return a ratio with three significant digits, or as an integer from 100 on."""
    return f"{ratio:.{2 if ratio < 10 else 1 if ratio < 100 else 0}f}"
