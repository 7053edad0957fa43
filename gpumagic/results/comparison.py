"""Several timings side by side, and whether they differ by more than their noise."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal

from gpumagic.results.base import Result
from gpumagic.results.timing import CudaTiming, Sample

if TYPE_CHECKING:
    import pandas

#: ``"noise"``: the difference is not larger than the noise.
Verdict = Literal["faster", "slower", "noise"]
Quantity = Literal["gpu", "wall"]


@dataclass(frozen=True)
class Compared:
    """A timing beside the comparison's baseline."""

    name: str
    timing: CudaTiming
    #: Its median time over the baseline's: 2.0 takes twice as long. None where one of them is 0.
    ratio: float | None = None
    #: Where the ratio lies with 95 % confidence; None where there are too few repeats to tell.
    interval: tuple[float, float] | None = None
    #: None for the baseline itself, and where there are too few repeats to tell.
    verdict: Verdict | None = None


@dataclass(frozen=True)
class Comparison(Result):
    """Timings side by side, as ``%cudatime --compare`` shows them; the first is the baseline."""

    entries: Sequence[Compared]
    #: The times that ``ratio``, ``interval`` and ``verdict`` compare.
    quantity: Quantity
    notes: tuple[str, ...] = ()

    @property
    def baseline(self) -> str:
        """The name of the timing that the others are compared with."""
        return self.entries[0].name

    def sample(self, entry: Compared) -> Sample:
        """The times of an entry that are compared."""
        gpu = entry.timing.gpu
        return gpu if self.quantity == "gpu" and gpu is not None else entry.timing.wall

    def __iter__(self) -> Iterator[Compared]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    def __getitem__(self, key: str | int) -> Compared:
        """An entry by its name or its place.

        Raises:
            KeyError: no such name.
        """
        if isinstance(key, int):
            return self.entries[key]
        for entry in self.entries:
            if entry.name == key:
                return entry
        raise KeyError(key)

    def __repr__(self) -> str:
        return f"<Comparison: {', '.join(entry.name for entry in self.entries)}>"

    def to_pandas(self) -> pandas.DataFrame:
        """A DataFrame with a row a timing: medians in seconds, ratios (needs pandas)."""
        import pandas

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
        return pandas.DataFrame(rows).set_index("name")

    def plot(self) -> Any:
        """Every repeat of every timing as a picture, which a notebook shows by itself.

        Raises:
            DependencyError: matplotlib is not installed.
        """
        return import_module("gpumagic.render.plots").plot(self)
