"""One measured run of code: wall, host, CPU and GPU time; and the aggregate of several runs.

Also whether torch.compile has compiled in one: that is no time of the code.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter, process_time
from typing import Any

from gpumagic.cuda import failure, torch_cuda
from gpumagic.cuda.devices import conditions
from gpumagic.results.timing import NO_SIGN, Bound, CudaTiming, Sample
from gpumagic.system.text import plural
from gpumagic.timing.bottleneck import Delay, gpu_outlasts_host
from gpumagic.timing.event_timer import EventTimer, Reading

ENDED = "at most: the GPU may have waited for Python in between"
#: Also where there was some: work that has ended by the time the code returns may leave no sign.
NO_SIGN_OF_WORK = "no GPU time: no GPU work was seen"
#: A single run of code that launches little: the GPU is done before the host.
_REPEAT_IT = "; if it was very short, repeat it: -n 100"
INTERRUPTED = "interrupted while waiting for the GPU"
_WHY = "TORCH_LOGS=recompiles,graph_breaks, set before Python starts, says why"


@dataclass(frozen=True)
class Run:
    """The times of one run, in seconds."""

    wall: float
    host: float
    cpu: float
    readings: dict[int, Reading]
    #: Why there is no GPU time.
    note: str | None = None


class Stopwatch:
    """Host clock, CPU clock and GPU events around a run; reusable."""

    def __init__(self) -> None:
        self._timer = EventTimer()

    def start(self, delay: Delay | None = None) -> None:
        """Start the clocks; the code's GPU work then queues behind ``delay``."""
        self._timer.prepare()
        self._timer.start(delay)
        # What the events take is no time of the code.
        self._cpu_start = process_time()
        self._started = perf_counter()

    def stop(self) -> Run:
        """Stop the clocks, wait for the GPU and return the times."""
        self._stopped = perf_counter()
        self._cpu = process_time() - self._cpu_start
        self._stopped = self._timer.stop(self._stopped)
        readings = self._timer.finish(self._started, self._stopped)
        finished = max((reading.finished for reading in readings.values()), default=self._stopped)
        note = self._timer.note
        return self._run(finished, readings, None if note is None else f"no GPU time: {note}")

    def give_up(self) -> Run:
        """Return what is known after an interrupted `stop`: host time, and wall time until now."""
        return self._run(perf_counter(), {}, INTERRUPTED)

    def release(self) -> None:
        """Free the events; the stopwatch can be started again.

        What is garbage in a cycle may be freed in a process that was forked meanwhile, by its
        garbage collector: there an event's destructor ends the process, as CUDA has no context.
        """
        self._timer = EventTimer()

    def _run(self, finished: float, readings: dict[int, Reading], note: str | None) -> Run:
        wall, host = finished - self._started, self._stopped - self._started
        return Run(wall, host, self._cpu, readings, note)


# --- aggregates of runs --------------------------------------------------------------------------


def summarize(
    runs: Sequence[Run],
    *,
    loops: int = 1,
    bound: Bound | None = None,
    evidence: str | None = None,
    shown: tuple[int, ...] = (),
    **others: Any,
) -> CudaTiming:
    """Aggregate runs, of ``loops`` loops each, into a `CudaTiming`.

    ``bound`` is what limits the code where the runs themselves do not show it, and ``evidence`` how
    that is known; ``shown`` are devices that have worked although the runs do not show it, and
    ``others`` further fields.
    """

    def per_loop(values: Sequence[float]) -> Sample:
        return Sample(tuple(value / loops for value in values))

    gpu = gpu_times(runs, shown)
    later = gpu_outlasts_host(gpu.seconds, gpu.hosts)
    if later is not None:
        bound, evidence = "gpu", later
    elif not gpu.seconds:
        bound = evidence = None
    at_most, note = bool(gpu.seconds) and bound != "gpu", gpu.note
    if at_most and note is None and bound is None:
        note = ENDED
    return CudaTiming(
        gpu=per_loop(gpu.seconds) if gpu.seconds else None,
        wall=per_loop([run.wall for run in runs]),
        cpu=per_loop([run.cpu for run in runs]),
        per_device={ordinal: per_loop(values) for ordinal, values in gpu.devices.items()},
        loops=loops,
        repeat=len(runs),
        bound=bound,
        host=per_loop([run.host for run in runs]),
        gpu_at_most=at_most,
        gpu_note=note,
        bound_evidence=evidence,
        conditions=conditions(gpu.devices),
        **others,
    )


def gpu_or_wall(runs: Sequence[Run]) -> Sequence[float]:
    """Return the runs' GPU seconds, or wall seconds where there are none."""
    return gpu_times(runs).seconds or [run.wall for run in runs]


def without_unseen_work(timing: CudaTiming) -> CudaTiming:
    """Return ``timing`` without the GPU time of a device that showed no sign of work."""
    if timing.gpu_note != NO_SIGN:
        return timing
    is_whole = timing.loops == timing.repeat == 1 and not timing.partial
    note = NO_SIGN_OF_WORK + _REPEAT_IT * is_whole
    return replace(timing, gpu=None, per_device={}, gpu_at_most=False, gpu_note=note, bound=None)


@dataclass(frozen=True)
class GpuTimes:
    """The GPU times of the runs that have one, with the host's; seconds of all loops."""

    seconds: Sequence[float] = ()
    hosts: Sequence[float] = ()
    #: Of each device that showed work; of the current one, and `NO_SIGN` is the note, if none did.
    devices: dict[int, list[float]] = field(default_factory=dict)
    note: str | None = None


def gpu_times(runs: Sequence[Run], shown: tuple[int, ...] = ()) -> GpuTimes:
    """Return the GPU times of runs, in which the devices ``shown`` worked even without a sign."""
    failures = [run.note for run in runs if run.note is not None]
    if failures:
        return GpuTimes(note=failures[0])
    if not any(run.readings for run in runs):
        return GpuTimes(note=f"no GPU time: {failure.why_no_gpu()}{_not_waited_for()}")
    signs = {i for run in runs for i, reading in run.readings.items() if reading.worked}
    used, note = tuple(sorted(signs)) or shown, None
    if not used:
        current = torch_cuda.current_device()
        if current is None or current not in runs[-1].readings:
            return GpuTimes(note=NO_SIGN_OF_WORK)
        used, note = (current,), NO_SIGN
    missing = [
        [i for i in used if i in run.readings and run.readings[i].seconds is None] for run in runs
    ]
    complete = [run for run, devices in zip(runs, missing, strict=True) if not devices]
    if len(complete) < len(runs):
        last = max(number for number, devices in enumerate(missing) if devices)
        first = _first_used(runs[last], missing[last])
        note = f"{first} inside this cell; run it again for the GPU time"
        if len(runs) > 1:
            note = f"{first} during repeat {last + 1}: GPU times are those of the other repeats"
    devices: dict[int, list[float]] = {}
    for i in used:
        times = [_seconds(run, i) for run in complete or runs]
        devices[i] = [seconds for seconds in times if seconds is not None]
    seconds = [max(_seconds(run, i) or 0.0 for i in used) for run in complete]
    devices = {i: times for i, times in devices.items() if times}
    return GpuTimes(seconds, [run.host for run in complete], devices, note)


def _not_waited_for() -> str:
    """Return a remark on an accelerator that is not CUDA's, as MPS or XPU; empty without one."""
    torch = None if torch_cuda.built_with_cuda() else torch_cuda.loaded()
    for kind in ("mps", "xpu"):
        backend: Any = getattr(torch, kind, None)
        if backend is not None and backend.is_available():
            return f"; the wall time does not wait for {kind}"
    return ""


def _first_used(run: Run, devices: Collection[int]) -> str:
    """Return what was first used in a run: CUDA, or some of the devices."""
    if len(devices) == len(run.readings):
        return "CUDA was initialised"
    named = " and ".join(f"cuda:{i}" for i in devices)
    return f"{named} {'were' if len(devices) > 1 else 'was'} first used"


def _seconds(run: Run, ordinal: int) -> float | None:
    """Return a device's time in a run, 0 where it had no context; None if it got one in it."""
    reading = run.readings.get(ordinal)
    return 0.0 if reading is None else reading.seconds


# --- torch.compile, which is not imported here ---------------------------------------------------


def compiled_frames() -> int:
    """Return how many frames torch.compile has compiled in this process."""
    # The counters are private; they are there once torch's compiler is imported.
    counters: Any = getattr(sys.modules.get("torch._dynamo.utils"), "counters", None)
    return 0 if counters is None else int(counters["frames"]["total"])


def counted(frames: int) -> tuple[str, ...]:
    """Return a note on what was compiled in a run that is timed, if anything was."""
    if not frames:
        return ()
    return (f"torch.compile compiled {plural(frames, 'function')} in this run; {_WHY}",)


def not_counted(runs: Sequence[float]) -> tuple[str, ...]:
    """Return a note on the runs, by their wall seconds, that are left out as compilations."""
    if not runs:
        return ()
    which = "the first run" if len(runs) == 1 else f"{len(runs)} runs"
    times = ", ".join(f"{seconds:.3g} s" for seconds in runs)
    return (f"torch.compile compiled in {which}, not counted: {times}; {_WHY}",)
