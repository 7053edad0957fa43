"""One measured stretch of code, between two marks, and what several of them amount to."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from gpumagic.cuda import torch_cuda
from gpumagic.results import Bound, CudaTiming, Sample
from gpumagic.results.quality import Quality
from gpumagic.timing import backends
from gpumagic.timing.bottleneck import judge
from gpumagic.timing.event_timer import Bracket, Reading
from gpumagic.timing.launch_overhead import Hold, Probe

try:
    import resource
except ImportError:  # Windows; elsewhere it is finer than os.times, which counts clock ticks
    resource = None  # type: ignore[assignment]


INTERRUPTED = "interrupted while waiting for the GPU"


@dataclass(frozen=True)
class Lap:
    """One measured stretch. Seconds."""

    wall: float
    host: float
    user: float
    system: float
    readings: dict[int, Reading]
    notes: tuple[str, ...] = ()
    #: torch's name of the devices' kind, and what to bear in mind about its times.
    backend: str = "cuda"
    remark: str | None = None


def cpu_times() -> tuple[float, float]:
    """CPU seconds of this process, user and system, all threads."""
    if resource is None:
        times = os.times()
        return times.user, times.system
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime, usage.ru_stime


class Stopwatch:
    """Host clock, CPU clock and GPU events around a stretch of code; reusable."""

    def __init__(self) -> None:
        self._bracket: Bracket | backends.EventPair = Bracket()

    def start(self, hold: Hold | None = None) -> None:
        """Start the clocks; the code's GPU work then waits as long as ``hold`` says."""
        other = backends.active()
        if other is not None:
            self._bracket = backends.EventPair(other)
        self._bracket.prepare()
        # A rehearsal warms the marks up, and tells what CPU time they take themselves.
        self._mark_start()
        self._mark_stop()
        self._own = tuple(self._cpu_passed)
        self._mark_start(hold)

    def stop(self) -> Lap:
        self._mark_stop()
        readings = self._bracket.finish(self._started, self._stopped)
        finished = max((reading.finished for reading in readings.values()), default=self._stopped)
        return self._lap(finished, readings, self._bracket.notes)

    def give_up(self) -> Lap:
        """What is known after an interrupted `stop`: the host's side, wall time until now."""
        return self._lap(perf_counter(), {}, (INTERRUPTED,))

    def _lap(self, finished: float, readings: dict[int, Reading], notes: tuple[str, ...]) -> Lap:
        user, system = self._cpu_passed
        other = None if isinstance(self._bracket, Bracket) else self._bracket
        return Lap(
            wall=finished - self._started,
            host=self._stopped - self._started,
            user=max(user - self._own[0], 0.0),
            system=max(system - self._own[1], 0.0),
            readings=readings,
            notes=notes,
            backend="cuda" if other is None else other.backend.kind,
            remark=None if other is None else other.remark,
        )

    def _mark_start(self, hold: Hold | None = None) -> None:
        # The CPU clock takes a microsecond to read: outside the other two.
        self._cpu_start = cpu_times()
        self._bracket.start(hold)
        self._started = perf_counter()

    def _mark_stop(self) -> None:
        self._stopped = perf_counter()
        self._bracket.stop()
        user, system = cpu_times()
        self._cpu_passed = user - self._cpu_start[0], system - self._cpu_start[1]


# --- what laps amount to ---------------------------------------------------------------------


def summarize(
    laps: Sequence[Lap],
    *,
    loops: int = 1,
    warmup: int = 0,
    compile_time: float = 0.0,
    partial: bool = False,
    probe: Probe | None = None,
    quality: Quality | None = None,
    compilations: Sequence[float] = (),
) -> CudaTiming:
    """The laps, of ``loops`` loops each, as a result; ``probe`` has the queued samples."""

    def per_loop(values: Sequence[float]) -> Sample:
        return Sample(tuple(value / loops for value in values))

    user = [lap.user for lap in laps]
    system = [lap.system for lap in laps]
    gpu = _gpu(laps, loops, probe)
    return CudaTiming(
        gpu=per_loop(gpu.seconds) if gpu.seconds else None,
        wall=per_loop([lap.wall for lap in laps]),
        cpu=per_loop([u + s for u, s in zip(user, system, strict=True)]),
        per_device={ordinal: per_loop(values) for ordinal, values in gpu.devices.items()},
        loops=loops,
        repeat=len(laps),
        warmup=warmup,
        compile_time=compile_time,
        bound=gpu.bound,
        host=per_loop([lap.host for lap in laps]),
        cpu_user=per_loop(user),
        cpu_system=per_loop(system),
        partial=partial,
        gpu_at_most=gpu.at_most,
        gpu_note=gpu.note if laps[-1].remark is None or gpu.note else laps[-1].remark,
        backend=laps[-1].backend,
        bound_evidence=gpu.evidence,
        **_queued(probe),
        quality=quality,
        compilations=tuple(compilations),
    )


def _queued(probe: Probe | None) -> dict[str, Any]:
    if probe is None or probe.shows_nothing:
        return {}
    return {
        "queued": Sample(tuple(probe.samples)) if probe.samples else None,
        "queued_note": probe.refusal,
    }


def timed(laps: Sequence[Lap]) -> Sequence[float]:
    """The laps' GPU seconds, or wall seconds where there are none."""
    return _gpu(laps).seconds or [lap.wall for lap in laps]


def working(laps: Sequence[Lap]) -> tuple[int, ...]:
    """The ordinals of the devices that did something in some lap."""
    return tuple(
        sorted({i for lap in laps for i, reading in lap.readings.items() if reading.worked})
    )


@dataclass(frozen=True)
class _Gpu:
    """The GPU's side of some laps; seconds of all loops."""

    seconds: Sequence[float] = ()
    devices: dict[int, list[float]] = field(default_factory=dict)
    bound: Bound | None = None
    evidence: str | None = None
    at_most: bool = False
    note: str | None = None


def _gpu(laps: Sequence[Lap], loops: int = 1, probe: Probe | None = None) -> _Gpu:
    failures = [note for lap in laps for note in lap.notes]
    if failures:
        return _Gpu(note=failures[0])
    if not any(lap.readings for lap in laps):
        return _Gpu(note=f"no GPU time: {torch_cuda.no_gpu_reason()}")
    worked = list(working(laps))
    if not worked and probe is not None and probe.shows_nothing:
        return _Gpu(note="no GPU time: the code gave the GPU nothing to do")
    note = None
    if not worked:
        current = torch_cuda.current_device()
        if current not in laps[-1].readings:
            return _Gpu(note="no GPU time: no sign of GPU work was seen")
        worked = [current]
    if not working(laps) and not (probe and (probe.samples or probe.bounds)):
        note = "no sign of GPU work was seen; the GPU time is that between two marks on its stream"
    complete = [lap for lap in laps if all(_seconds(lap, i) is not None for i in worked)]
    devices = {
        i: values
        for i in worked
        if (values := [s for lap in laps if (s := _seconds(lap, i)) is not None])
    }
    if not complete:
        begun = _begun(laps[0], worked)
        return _Gpu(
            devices=devices, note=f"{begun} inside this cell; run it again for the GPU time"
        )
    if len(complete) < len(laps):
        note = f"{_begun(laps[0], worked)} during the first repeat: it has no GPU time"
        devices = {i: [lap.readings[i].seconds or 0.0 for lap in complete] for i in worked}
    seconds = [max(_seconds(lap, i) or 0.0 for i in worked) for lap in complete]
    bound, evidence = judge(seconds, [lap.host for lap in complete], loops, probe)
    at_most = bound != "gpu"
    if at_most and note is None and bound is None:
        note = "at most: the GPU was done as soon as the code was, and may have waited in between"
    return _Gpu(seconds, devices, bound, evidence, at_most, note)


def _begun(lap: Lap, worked: Sequence[int]) -> str:
    """What had its beginning in a lap: CUDA, or its use on some devices."""
    if all(_seconds(lap, i) is None for i in lap.readings):
        return "CUDA was initialised"
    first = [f"cuda:{i}" for i in worked if _seconds(lap, i) is None]
    return f"{' and '.join(first)} {'was' if len(first) == 1 else 'were'} first used"


def _seconds(lap: Lap, ordinal: int) -> float | None:
    """A device's time in a lap; for one that was not in use before this lap, unknown."""
    reading = lap.readings.get(ordinal)
    return None if reading is None else reading.seconds
