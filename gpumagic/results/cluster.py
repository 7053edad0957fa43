"""What the engines of a cluster have, were given, and took for a cell."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from gpumagic.results.base import Result, Series, plain
from gpumagic.results.devices import Device, DeviceTable, Selection
from gpumagic.results.kernels import KernelReport
from gpumagic.results.memory import MemoryDelta
from gpumagic.results.timing import CudaTiming, Sample
from gpumagic.system.text import plural

if TYPE_CHECKING:
    import pandas

#: A rank is called a straggler if it took this much longer than the median.
STRAGGLES = 1.2


@dataclass(frozen=True)
class EngineResult:
    """What all results of one engine have in common."""

    #: ipyparallel's id of the engine.
    engine: int
    #: The engine's host by its own name; None if it has never answered.
    host: str | None = None
    pid: int | None = None
    #: Its rank in ``torch.distributed``'s group; None where there is none.
    rank: int | None = None
    #: Why there is no result, or that it is not whole: one line.
    error: str | None = None


@dataclass(frozen=True)
class EngineDevices(EngineResult):
    """The devices of an engine's host, as that engine sees them."""

    table: DeviceTable | None = None
    #: The UUIDs of those that the engine was given when it was started.
    given: tuple[str, ...] = ()
    #: The UUIDs of those that were chosen for it since; empty where nothing was.
    pinned: tuple[str, ...] = ()
    #: Tells machines of one name apart; None where the system has no such thing.
    machine: str | None = None
    #: How many processes ``torch.distributed``'s group has; None where there is none.
    world_size: int | None = None
    backend: str | None = None


@dataclass(frozen=True)
class ClusterTable(Series[EngineDevices]):
    """Every engine and the devices that it sees, by engine id."""

    items_in: ClassVar[str] = "engines"

    engines: tuple[EngineDevices, ...] = ()
    #: Where the cluster was found: a profile or a connection file.
    source: str = ""
    #: Seconds that the engines had to answer, at most.
    timeout: float | None = None
    show_processes: bool = False

    @property
    def hosts(self) -> dict[str, tuple[EngineDevices, ...]]:
        """The engines that have answered, by host."""
        found: dict[str, list[EngineDevices]] = {}
        for each in self.engines:
            if each.host is not None and each.table is not None:
                found.setdefault(each.host, []).append(each)
        return {host: tuple(engines) for host, engines in sorted(found.items())}

    @property
    def silent(self) -> tuple[EngineDevices, ...]:
        """The engines without a table; their ``error`` says why."""
        return tuple(each for each in self.engines if each.table is None)

    def __repr__(self) -> str:
        return f"<ClusterTable: {plural(len(self), 'engine')}>"

    def to_pandas(self) -> pandas.DataFrame:
        """A DataFrame with a row an engine and device (needs pandas)."""
        import pandas

        rows = [
            {"engine": each.engine, "host": each.host, "rank": each.rank, **plain(device)}
            for each in self.engines
            for device in each.table or ()
        ]
        columns = ["engine", "host", "rank", *(f.name for f in dataclasses.fields(Device))]
        return pandas.DataFrame(rows, columns=columns).set_index(["engine", "index"])


@dataclass(frozen=True)
class EngineSelection(EngineResult):
    """What became of a choice of devices on one engine."""

    selection: Selection | None = None


@dataclass(frozen=True)
class ClusterSelection(Series[EngineSelection]):
    """What became of a choice of devices on every engine: verified there."""

    items_in: ClassVar[str] = "engines"

    #: What was asked for.
    requested: str
    engines: tuple[EngineSelection, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def too_late(self) -> tuple[int, ...]:
        """The engines on which the choice did not take effect, because CUDA was initialised."""
        return tuple(
            each.engine
            for each in self.engines
            if each.selection is not None and each.selection.status == "too-late"
        )

    @property
    def targets(self) -> tuple[int, ...]:
        """The engines that now see a device."""
        return tuple(
            each.engine for each in self.engines if each.selection and each.selection.devices
        )

    def __repr__(self) -> str:
        return f"<ClusterSelection {self.requested!r}: {len(self)} engines>"


@dataclass(frozen=True)
class EngineTiming(EngineResult):
    """How long a cell took on one engine."""

    timing: CudaTiming | None = None


@dataclass(frozen=True)
class ClusterTiming(Result):
    """How long a cell took on every engine, and what that amounts to. Seconds.

    ``gpu``, ``wall`` and ``cpu`` are `Sample`s with one value an engine: its median. They are None
    where no engine has such a time. An engine whose run ended early, by an exception or an
    interrupt, is not among them, nor compared with the others.
    """

    engines: tuple[EngineTiming, ...] = ()
    #: From sending the cell until the last engine's answer, on this side.
    elapsed: float | None = None
    #: Whether the ranks waited for each other before the clocks were started.
    barrier: bool = False
    notes: tuple[str, ...] = ()

    @property
    def gpu(self) -> Sample | None:
        return self._over(lambda timing: timing.gpu)

    @property
    def wall(self) -> Sample | None:
        return self._over(lambda timing: timing.wall)

    @property
    def cpu(self) -> Sample | None:
        return self._over(lambda timing: timing.cpu)

    def _over(self, quantity: Callable[[CudaTiming], Sample | None]) -> Sample | None:
        samples = [quantity(timing) for timing in self._whole.values()]
        values = tuple(sample.median for sample in samples if sample is not None)
        return Sample(values) if values else None

    @property
    def per_engine(self) -> dict[int, CudaTiming]:
        """The timings that there are, by engine id; one that is not whole is ``partial``."""
        return {each.engine: each.timing for each in self.engines if each.timing is not None}

    @property
    def _whole(self) -> dict[int, CudaTiming]:
        return {i: timing for i, timing in self.per_engine.items() if not timing.partial}

    @property
    def kernels(self) -> dict[int, KernelReport]:
        """By engine id, where the GPU time went; empty without ``--kernels``."""
        found = {engine: timing.kernels for engine, timing in self.per_engine.items()}
        return {engine: report for engine, report in found.items() if report is not None}

    @property
    def failed(self) -> dict[int, str]:
        """By engine id, why there is no timing, or only a part of one."""
        return {each.engine: each.error for each in self.engines if each.error is not None}

    @property
    def seconds(self) -> dict[int, float]:
        """By engine id, what they are compared by: median GPU time if all have one, else wall."""
        timings = self._whole
        on_gpu = all(timing.gpu is not None for timing in timings.values())
        return {
            engine: (timing.gpu if on_gpu and timing.gpu else timing.wall).median
            for engine, timing in timings.items()
        }

    @property
    def slowest(self) -> EngineTiming | None:
        """The engine that took longest."""
        seconds = self.seconds
        timed = [each for each in self.engines if each.engine in seconds]
        return max(timed, key=lambda each: seconds[each.engine], default=None)

    @property
    def straggler(self) -> EngineTiming | None:
        """The slowest, if it took over 1.2 times as long as the median engine."""
        slowest, seconds = self.slowest, self.seconds
        if slowest is None or len(seconds) < 2:
            return None
        median = statistics.median(seconds.values())
        return slowest if seconds[slowest.engine] > STRAGGLES * median else None

    @property
    def host_bound(self) -> tuple[int, ...]:
        """The engines whose GPU waited for their host to launch work."""
        return tuple(i for i, timing in self._whole.items() if timing.bound == "host")

    def __repr__(self) -> str:
        best = self.gpu or self.wall
        figure = "-" if best is None else f"median {best.median:.6g} s"
        return f"<ClusterTiming: {len(self.engines)} engines, {figure}>"

    def to_pandas(self) -> pandas.DataFrame:
        """A DataFrame with a row an engine: median seconds per loop (needs pandas)."""
        import pandas

        rows = []
        for each in self.engines:
            row: dict[str, Any] = {"engine": each.engine, "host": each.host, "rank": each.rank}
            for name in ("gpu", "wall", "cpu", "host"):
                sample = getattr(each.timing, name, None)
                row[f"{name}_time"] = None if sample is None else sample.median
            row["bound"] = getattr(each.timing, "bound", None)
            rows.append({**row, "error": each.error})
        return pandas.DataFrame(rows).set_index("engine")


@dataclass(frozen=True)
class EngineMemory(EngineResult):
    """What a cell did to the GPU memory of one engine."""

    delta: MemoryDelta | None = None

    @property
    def peak(self) -> int | None:
        """Bytes: the highest peak among the engine's devices; None where there is none."""
        devices = () if self.delta is None else self.delta.devices.values()
        return max((device.peak for device in devices), default=None)


@dataclass(frozen=True)
class ClusterMemory(Result):
    """What a cell did to GPU memory on every engine. Bytes, exact."""

    engines: tuple[EngineMemory, ...] = ()
    #: From sending the cell until the last engine's answer, on this side; seconds.
    elapsed: float | None = None
    notes: tuple[str, ...] = ()

    @property
    def per_engine(self) -> dict[int, MemoryDelta]:
        """The changes that there are, by engine id."""
        return {each.engine: each.delta for each in self.engines if each.delta is not None}

    @property
    def failed(self) -> dict[int, str]:
        """By engine id, why there are no figures, or only a part of them."""
        return {each.engine: each.error for each in self.engines if each.error is not None}

    @property
    def peak(self) -> Mapping[int, int]:
        """By engine id, the highest peak among its devices."""
        return {each.engine: each.peak for each in self.engines if each.peak is not None}

    @property
    def highest(self) -> EngineMemory | None:
        """The engine with the highest peak; None where nobody used a GPU."""
        used = [each for each in self.engines if each.peak is not None]
        return max(used, key=lambda each: each.peak or 0, default=None)

    def __repr__(self) -> str:
        return f"<ClusterMemory: {len(self.engines)} engines>"


@dataclass(frozen=True)
class ProcessGroup(Result):
    """``torch.distributed``'s group over the engines; empty where there is none."""

    #: Engine id to rank.
    ranks: Mapping[int, int] = dataclasses.field(default_factory=dict)
    backend: str | None = None
    #: ``address:port`` at which the ranks have met; None on one host, where it was a private file.
    master: str | None = None
    #: By engine id, why it is not in the group.
    failed: Mapping[int, str] = dataclasses.field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def world_size(self) -> int:
        return len(self.ranks)

    def __repr__(self) -> str:
        return f"<ProcessGroup: {self.world_size} ranks, {self.backend or 'not initialised'}>"
