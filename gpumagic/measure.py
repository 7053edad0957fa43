"""The measuring loop: one run between two marks, or many, and what they amount to."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from time import perf_counter

from gpumagic import torch_cuda
from gpumagic.bracket import Bracket, Reading
from gpumagic.errors import SpecError
from gpumagic.loop import Loop
from gpumagic.results import Bound, CudaTiming, Sample

try:
    import resource
except ImportError:  # Windows; elsewhere it is finer than os.times, which counts clock ticks
    resource = None  # type: ignore[assignment]

#: Repeats when only the number of loops is given, as ``%timeit``'s.
DEFAULT_REPEAT = 7
#: Seconds that a repeat lasts at least when the number of loops is chosen here, as ``%timeit``'s.
MIN_REPEAT_TIME = 0.2
MAX_LOOPS = 10_000_000
#: The part of the GPU time after the host was done from which the GPU is what limits.
_CLEARLY_LATER = 0.1

MADE_INSIDE = "CUDA was initialised inside this cell; run it again for the GPU time"


@dataclass(frozen=True)
class Lap:
    """One measured stretch. Seconds."""

    wall: float
    host: float
    user: float
    system: float
    readings: dict[int, Reading]
    notes: tuple[str, ...] = ()


def _cpu() -> tuple[float, float]:
    """CPU seconds of this process, user and system, all threads."""
    if resource is None:
        times = os.times()
        return times.user, times.system
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime, usage.ru_stime


class Stopwatch:
    """Host clock, CPU clock and GPU events around a stretch of code; reusable."""

    def __init__(self) -> None:
        self._bracket = Bracket()

    def start(self) -> None:
        self._bracket.prepare()
        # A rehearsal warms the marks up, and tells what CPU time they take themselves.
        self._mark_start()
        self._mark_stop()
        self._own = tuple(self._cpu_passed)
        self._mark_start()

    def stop(self) -> Lap:
        self._mark_stop()
        readings = self._bracket.finish(self._started, self._stopped)
        finished = max((reading.finished for reading in readings.values()), default=self._stopped)
        user, system = self._cpu_passed
        return Lap(
            wall=finished - self._started,
            host=self._stopped - self._started,
            user=max(user - self._own[0], 0.0),
            system=max(system - self._own[1], 0.0),
            readings=readings,
            notes=self._bracket.notes,
        )

    def _mark_start(self) -> None:
        # The CPU clock takes a microsecond to read: outside the other two.
        self._cpu_start = _cpu()
        self._bracket.start()
        self._started = perf_counter()

    def _mark_stop(self) -> None:
        self._stopped = perf_counter()
        self._bracket.stop()
        user, system = _cpu()
        self._cpu_passed = user - self._cpu_start[0], system - self._cpu_start[1]


# --- what laps amount to ---------------------------------------------------------------------


def summarize(
    laps: Sequence[Lap],
    *,
    loops: int = 1,
    warmup: int = 0,
    compile_time: float = 0.0,
    partial: bool = False,
) -> CudaTiming:
    """The laps, of ``loops`` loops each, as a result."""

    def per_loop(values: Sequence[float]) -> Sample:
        return Sample(tuple(value / loops for value in values))

    user = [lap.user for lap in laps]
    system = [lap.system for lap in laps]
    gpu = _gpu(laps)
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
        gpu_note=gpu.note,
    )


@dataclass(frozen=True)
class _Gpu:
    """The GPU's side of some laps; seconds of all loops."""

    seconds: Sequence[float] = ()
    devices: dict[int, list[float]] = field(default_factory=dict)
    bound: Bound | None = None
    at_most: bool = False
    note: str | None = None


def _gpu(laps: Sequence[Lap]) -> _Gpu:
    failures = [note for lap in laps for note in lap.notes]
    if failures:
        return _Gpu(note=failures[0])
    if not any(lap.readings for lap in laps):
        return _Gpu(note=f"no GPU time: {torch_cuda.no_gpu_reason()}")
    worked = sorted({i for lap in laps for i, reading in lap.readings.items() if reading.worked})
    note = None
    if not worked:
        current = torch_cuda.current_device()
        if current not in laps[-1].readings:
            return _Gpu(note="no GPU time: no sign of GPU work was seen")
        worked = [current]
        note = "no sign of GPU work was seen; the GPU time is that between two marks on its stream"
    complete = [lap for lap in laps if all(_seconds(lap, i) is not None for i in worked)]
    devices = {
        i: values
        for i in worked
        if (values := [s for lap in laps if (s := _seconds(lap, i)) is not None])
    }
    if not complete:
        return _Gpu(devices=devices, note=MADE_INSIDE)
    if len(complete) < len(laps):
        note = "CUDA was initialised during the first repeat: it has no GPU time"
        devices = {i: [lap.readings[i].seconds or 0.0 for lap in complete] for i in worked}
    seconds = [max(_seconds(lap, i) or 0.0 for i in worked) for lap in complete]
    later = sum(
        gpu - lap.host >= _CLEARLY_LATER * gpu for gpu, lap in zip(seconds, complete, strict=True)
    )
    bound: Bound | None = "gpu" if 2 * later > len(complete) else None
    at_most = bound is None
    if at_most and note is None:
        note = "at most: the GPU was done as soon as the code was, and may have waited in between"
    return _Gpu(seconds, devices, bound, at_most, note)


def _seconds(lap: Lap, ordinal: int) -> float | None:
    """A device's time in a lap; for one that was not in use before this lap, unknown."""
    reading = lap.readings.get(ordinal)
    return None if reading is None else reading.seconds


# --- many runs -------------------------------------------------------------------------------


class Repetition:
    """Warm-up, the number of loops if it is open, and the repeats.

    Iterate over it and run the loop as often as each item says, inside the repetition's scope (the
    garbage collector is off in it, as in ``timeit``)::

        for count in repetition:
            with repetition:
                loop(count)

    ``progress`` is called between repeats with the part that is done, 0 to 1.

    Raises:
        SpecError: a number that means nothing.
    """

    def __init__(
        self,
        loops: int | None = None,
        repeat: int | None = None,
        warmup: int | None = None,
        progress: Callable[[float], None] | None = None,
    ) -> None:
        for name, value, least in (("n", loops, 1), ("r", repeat, 1), ("w", warmup, 0)):
            if value is not None and value < least:
                raise SpecError(f"{name} is {value}, but must be {least} or more")
        self.loops = loops
        self.repeat = DEFAULT_REPEAT if repeat is None else repeat
        self.warmup = 1 if warmup is None else warmup
        self._progress = progress
        self._stopwatch = Stopwatch()
        #: The complete repeats so far.
        self.laps: list[Lap] = []
        self._last: Lap | None = None

    def __iter__(self) -> Iterator[int]:
        if self.warmup:
            yield self.warmup
        if self.loops is None:
            yield from self._choose_loops()
        assert self.loops is not None
        for done in range(self.repeat):
            if self._progress is not None:
                self._progress(done / self.repeat)
            yield self.loops
            assert self._last is not None
            self.laps.append(self._last)

    def _choose_loops(self) -> Iterator[int]:
        """The smallest of 1, 2, 5, 10… loops that last as long as a repeat should."""
        count = 1
        while True:
            yield count
            assert self._last is not None
            if self._last.wall >= MIN_REPEAT_TIME or count >= MAX_LOOPS:
                break
            wanted = count * min(MIN_REPEAT_TIME / max(self._last.wall, 1e-9), 100.0)
            count = min(_round_up(max(wanted, count + 1)), MAX_LOOPS)
        self.loops = count

    def __enter__(self) -> None:
        self._gc_was_on = gc.isenabled()
        gc.disable()
        self._stopwatch.start()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            # A stretch that was cut short tells nothing, and nobody is to wait for its GPU work.
            self._last = self._stopwatch.stop() if kind is None else None
        finally:
            if self._gc_was_on:
                gc.enable()

    def result(self, compile_time: float = 0.0, *, partial: bool = False) -> CudaTiming | None:
        """What the complete repeats amount to; None if there is none."""
        if not self.laps or self.loops is None:
            return None
        return summarize(
            self.laps,
            loops=self.loops,
            warmup=self.warmup,
            compile_time=compile_time,
            partial=partial,
        )


def _round_up(value: float) -> int:
    """The next number of the row 1, 2, 5, 10, 20 and so on."""
    decade = 1
    while True:
        for step in (1, 2, 5):
            if step * decade >= value * 0.999:
                return step * decade
        decade *= 10


def run(loop: Loop, repetition: Repetition) -> None:
    """All of a repetition."""
    __tracebackhide__ = True
    for count in repetition:
        with repetition:
            loop(count)


async def run_async(loop: Loop, repetition: Repetition) -> None:
    """`run` for a loop that awaits."""
    __tracebackhide__ = True
    for count in repetition:
        with repetition:
            await loop(count)
