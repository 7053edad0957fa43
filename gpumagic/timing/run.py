"""One measured run of code: wall, host, CPU and GPU time; and the aggregate of several runs."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter, process_time
from typing import Any

from gpumagic.cuda import failure, machine, torch_cuda
from gpumagic.results import Bound, CudaTiming, Sample
from gpumagic.results.quality import Quality
from gpumagic.results.timing import NO_SIGN
from gpumagic.system import cpu_wait
from gpumagic.timing import backends
from gpumagic.timing.bottleneck import judge
from gpumagic.timing.compilations import CompilationRecord
from gpumagic.timing.event_timer import EventTimer, Reading
from gpumagic.timing.launch_overhead import NO_WORK, Delay, QueuedSampling

try:
    import resource
except ImportError:  # Windows; elsewhere it is finer than os.times, which counts clock ticks
    resource = None  # type: ignore[assignment]


ENDED = "at most: the GPU was done as soon as the code was, and may have waited in between"
#: Of a run that the GPU seems to have outlasted by so much of the host's time, and so many seconds.
HELD_UP = "at most: the GPU was done when it was asked, but the machine was busy and that was late"
_LATE, _LATE_SECONDS = 0.1, 1e-3
#: Decimal places of the CPU clock's seconds.
_DIGITS = 9
#: Readings of the CPU clock of which the shortest counts.
_EMPTY = 5
#: Also where there was some: work that has ended by the time the code returns may leave no sign.
NO_SIGN_OF_WORK = "no GPU time: no sign of GPU work was seen"
INTERRUPTED = "interrupted while waiting for the GPU"


@dataclass(frozen=True)
class Run:
    """The times of one run, in seconds."""

    wall: float
    host: float
    user: float
    system: float
    readings: dict[int, Reading]
    #: Why there is no GPU time.
    note: str | None = None
    #: torch's name of the devices' kind, and a caveat on its times.
    backend: str = "cuda"
    remark: str | None = None
    #: Seconds that threads waited for a CPU, added up; None where that is not counted.
    waited: float | None = None


def cpu_times() -> tuple[float, float]:
    """Return the CPU seconds of this process, user and system, all threads."""
    if resource is None:
        times = os.times()
        return times.user, times.system
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime, usage.ru_stime


class Stopwatch:
    """Host clock, CPU clock and GPU events around a run; reusable."""

    def __init__(self) -> None:
        self._timer: EventTimer | backends.EventPair = EventTimer()

    def start(self, delay: Delay | None = None) -> None:
        """Start the clocks; the code's GPU work then queues behind ``delay``."""
        other = backends.active()
        if other is not None:
            self._timer = backends.EventPair(other)
        self._timer.prepare()
        # An empty run warms the calls up.
        self._start_clocks()
        self._stop_clocks()
        if isinstance(self._timer, EventTimer):
            self._timer.settle()
        self._own_cpu = min(_empty_cpu_time() for _ in range(_EMPTY))
        self._waited = cpu_wait.counters()
        self._start_clocks(delay)

    def stop(self) -> Run:
        """Stop the clocks, wait for the GPU and return the times."""
        self._stop_clocks()
        readings = self._timer.finish(self._started, self._stopped)
        finished = max((reading.finished for reading in readings.values()), default=self._stopped)
        note = self._timer.note
        run = self._run(finished, readings, None if note is None else f"no GPU time: {note}")
        return replace(run, waited=cpu_wait.waited_since(self._waited))

    def release(self) -> None:
        """End a run that was cut short, and free the events; it can be started again.

        What is garbage in a cycle may be freed in a process that was forked meanwhile, by its
        garbage collector: there an event's destructor ends the process, as CUDA has no context.
        """
        self._timer = EventTimer()

    def give_up(self) -> Run:
        """Return what is known after an interrupted `stop`: host time, and wall time until now."""
        return self._run(perf_counter(), {}, INTERRUPTED)

    def _run(self, finished: float, readings: dict[int, Reading], note: str | None) -> Run:
        cpu = max(self._cpu - self._own_cpu, 0.0)
        # These include the events around the code, and are coarse: only their ratio is used.
        user, system = (b - a for a, b in zip(*self._parts, strict=True))
        system_part = system / (user + system) if user + system > 0 else 0.0
        other = None if isinstance(self._timer, EventTimer) else self._timer
        return Run(
            wall=finished - self._started,
            host=self._stopped - self._started,
            user=round(cpu * (1 - system_part), _DIGITS),
            system=round(cpu * system_part, _DIGITS),
            readings=readings,
            note=note,
            backend="cuda" if other is None else other.backend.kind,
            remark=None if other is None else other.remark,
        )

    def _start_clocks(self, delay: Delay | None = None) -> None:
        parts = cpu_times()
        self._parts = parts, parts
        self._timer.start(delay)
        # What the events take is no time of the code.
        self._cpu_start = process_time()
        self._started = perf_counter()

    def _stop_clocks(self) -> None:
        self._stopped = perf_counter()
        self._cpu = process_time() - self._cpu_start
        self._timer.stop()
        self._parts = self._parts[0], cpu_times()


def _empty_cpu_time() -> float:
    """Return the CPU seconds between two readings of the CPU clock."""
    start = process_time()
    perf_counter()
    return process_time() - start


# --- aggregates of runs ----------------------------------------------------------------------


def summarize(
    runs: Sequence[Run],
    *,
    loops: int = 1,
    warmup: int = 0,
    compile_time: float = 0.0,
    partial: bool = False,
    sampling: QueuedSampling | None = None,
    quality: Quality | None = None,
    compilations: Sequence[float] = (),
    compiled: CompilationRecord | None = None,
    shown: Sequence[int] = (),
    host_speed: Sample | None = None,
) -> CudaTiming:
    """Aggregate runs, of ``loops`` loops each, into a `CudaTiming`.

    ``shown`` are the devices that showed work in another run of the code.
    """

    def per_loop(values: Sequence[float]) -> Sample:
        return Sample(tuple(value / loops for value in values))

    user = [run.user for run in runs]
    system = [run.system for run in runs]
    waited = [run.waited for run in runs if run.waited is not None]
    gpu = _gpu(runs, loops, sampling, shown)
    return CudaTiming(
        gpu=per_loop(gpu.seconds) if gpu.seconds else None,
        wall=per_loop([run.wall for run in runs]),
        cpu=per_loop([u + s for u, s in zip(user, system, strict=True)]),
        per_device={ordinal: per_loop(values) for ordinal, values in gpu.devices.items()},
        loops=loops,
        repeat=len(runs),
        warmup=warmup,
        compile_time=compile_time,
        bound=gpu.bound,
        host=per_loop([run.host for run in runs]),
        cpu_user=per_loop(user),
        cpu_system=per_loop(system),
        cpu_wait=per_loop(waited) if len(waited) == len(runs) else None,
        partial=partial,
        gpu_at_most=gpu.at_most,
        gpu_note=gpu.note if runs[-1].remark is None or gpu.note else runs[-1].remark,
        backend=runs[-1].backend,
        bound_evidence=gpu.evidence,
        **_queued(sampling),
        quality=quality,
        compilations=tuple(compilations),
        compiled=() if compiled is None else compiled.since(),
        graph_breaks=() if compiled is None else compiled.graph_breaks(),
        notes=() if compiled is None else compiled.notes(),
        conditions=machine.conditions(gpu.devices, host_speed),
    )


def _queued(sampling: QueuedSampling | None) -> dict[str, Any]:
    if sampling is None or sampling.no_gpu_work:
        return {}
    return {
        "queued": Sample(tuple(sampling.samples)) if sampling.samples else None,
        "queued_note": sampling.unavailable,
    }


def gpu_or_wall(runs: Sequence[Run]) -> Sequence[float]:
    """Return the runs' GPU seconds, or wall seconds where there are none."""
    return _gpu(runs).seconds or [run.wall for run in runs]


def devices_used(runs: Sequence[Run]) -> tuple[int, ...]:
    """Return the ordinals of the devices that showed work in a run."""
    return tuple(
        sorted({i for run in runs for i, reading in run.readings.items() if reading.worked})
    )


def without_unseen_work(timing: CudaTiming) -> CudaTiming:
    """Return ``timing`` without the GPU time of a device that showed no sign of work."""
    if timing.gpu_note != NO_SIGN:
        return timing
    return replace(
        timing,
        gpu=None,
        per_device={},
        gpu_at_most=False,
        gpu_note=NO_SIGN_OF_WORK,
    )


@dataclass(frozen=True)
class _Gpu:
    """The GPU times of some runs; seconds of all loops."""

    seconds: Sequence[float] = ()
    devices: dict[int, list[float]] = field(default_factory=dict)
    bound: Bound | None = None
    evidence: str | None = None
    at_most: bool = False
    note: str | None = None


def _gpu(
    runs: Sequence[Run],
    loops: int = 1,
    sampling: QueuedSampling | None = None,
    elsewhere: Sequence[int] = (),
) -> _Gpu:
    failures = [run.note for run in runs if run.note is not None]
    if failures:
        return _Gpu(note=failures[0])
    if not any(run.readings for run in runs):
        return _Gpu(note=f"no GPU time: {failure.why_no_gpu()}")
    used = list(devices_used(runs))
    if not used and sampling is not None and sampling.no_gpu_work:
        return _Gpu(note=NO_SIGN_OF_WORK)
    used = used or [i for i in elsewhere if i in runs[-1].readings]
    # Samples show work of the current device that leaves no other sign.
    shown = bool(used or (sampling is not None and sampling.shows_work))
    if not used:
        current = torch_cuda.current_device()
        if current is None or current not in runs[-1].readings:
            return _Gpu(note=NO_SIGN_OF_WORK)
        gaps = [_seconds(run, current) for run in runs]
        if not shown and all(gap is not None and gap <= NO_WORK for gap in gaps):
            return _Gpu(note=NO_SIGN_OF_WORK)
        used = [current]
    note = None if shown else NO_SIGN
    complete = [run for run in runs if all(_seconds(run, i) is not None for i in used)]
    devices = {
        i: values
        for i in used
        if (values := [s for run in runs if (s := _seconds(run, i)) is not None])
    }
    if not complete:
        first = _first_used(runs[0], used)
        return _Gpu(
            devices=devices, note=f"{first} inside this cell; run it again for the GPU time"
        )
    if len(complete) < len(runs):
        note = f"{_first_used(runs[0], used)} during the first repeat: it has no GPU time"
        devices = {i: [run.readings[i].seconds or 0.0 for run in complete] for i in used}
    seconds = [max(_seconds(run, i) or 0.0 for i in used) for run in complete]
    # A GPU that was done when the host was has not outlasted it, whenever that was seen.
    known = [
        s if any(not run.readings[i].idle for i in used) else min(s, run.host)
        for s, run in zip(seconds, complete, strict=True)
    ]
    bound, evidence = judge(known, [run.host for run in complete], loops, sampling)
    at_most = bound != "gpu"
    if at_most and note is None and bound is None:
        hosts = [(1 + _LATE) * run.host + _LATE_SECONDS for run in complete]
        is_late = any(s > host >= k for s, k, host in zip(seconds, known, hosts, strict=True))
        note = HELD_UP if is_late else ENDED
    return _Gpu(seconds, devices, bound, evidence, at_most, note)


def _first_used(run: Run, used: Sequence[int]) -> str:
    """Return what was first used in a run: CUDA, or some of the devices."""
    if all(_seconds(run, i) is None for i in run.readings):
        return "CUDA was initialised"
    first = [f"cuda:{i}" for i in used if _seconds(run, i) is None]
    *others, last = first
    named = f"{', '.join(others)} and {last}" if others else last
    return f"{named} {'were' if others else 'was'} first used"


def _seconds(run: Run, ordinal: int) -> float | None:
    """Return a device's time in a run; None if it was first used in this run."""
    reading = run.readings.get(ordinal)
    return None if reading is None else reading.seconds
