"""Repeated runs of a loop: warm-up, the repeats, and where these leave it open, queued runs.

With -n 1 -r 1 the code runs once; with -w 0 as often as was asked for.
"""

from __future__ import annotations

import gc
import math
import statistics
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from time import perf_counter

from gpumagic.cells.timeit_loop import Loop
from gpumagic.results.timing import EXACT, CudaTiming, StoppedBy, is_bound
from gpumagic.timing import repeat_plan, run_conditions
from gpumagic.timing.event_timer import Started, read, start, stop
from gpumagic.timing.summary import (
    Queued,
    compiled_frames,
    counted,
    not_counted,
    share,
    summarize,
)
from gpumagic.timing.times import Times
from gpumagic.wording import plural

#: Seconds of warm-up after the first loop, back to back: a GPU that was idle needs a while to reach
#: its clock (triton's ``do_bench`` has 25 ms).
_WARM_UP = 50e-3
#: The most loops of warm-up, where their number is not given, nor that of what is timed.
_MOST_WARM_UP = 2**20
#: Seconds of measuring at least, unless the repeats are counted (``do_bench`` has 100 ms).
_LEAST_TIME = 0.1
#: Seconds that a repeat lasts at least where the number of loops is chosen here.
_REPEAT = 5e-3
#: Queued runs; as many as an interval needs, where the repeats have one.
_QUEUED = 3
#: Seconds of the GPU that a queued run has at least.
_SAMPLE = 1e-3
#: The most loops of a queued run: a queue holds some 1,000 launches, and a host that finds it full
#: waits.
_MOST_LOOPS = 100
#: Seconds: the resolution of events, with a margin.
_STEP = 1e-6
#: Runs in a row in which torch.compile may compile (its own limit to recompiling is 8).
_MOST_COMPILATIONS = 8


class _AsRun(AbstractContextManager[None]):
    """Times what runs in the scope; where that is cut short, its GPU work is not waited for."""

    def __init__(self, caches: run_conditions.ColdCaches) -> None:
        self._caches = caches
        self._started: Started | None = None
        self.times: Times | None = None
        #: How many functions torch.compile has compiled.
        self.compiled = 0

    def __enter__(self) -> None:
        self.compiled = -compiled_frames()
        self._caches.empty()
        self._started = start()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        started, self._started = self._started, None
        if kind is None and started is not None:
            self.times = read(stop(started))
            self.compiled += compiled_frames()


class _Behind(AbstractContextManager[None]):
    """Queues what runs in the scope behind a delay of some seconds."""

    def __init__(self, caches: run_conditions.ColdCaches, delay: float) -> None:
        self._caches, self._delay = caches, delay
        self._delayed: run_conditions.Delayed | None = None
        #: Of each device; None where that is not known.
        self.seconds: dict[int, float] | None = None

    def __enter__(self) -> None:
        self._caches.empty()
        self._delayed = run_conditions.start(self._delay)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        delayed, self._delayed = self._delayed, None
        if kind is None and delayed is not None:
            self.seconds = run_conditions.read(delayed)


class Benchmark:
    """Runs a loop as often as a plan asks for, and aggregates the runs.

    ``progress`` is called between repeats with the part that is done, 0 to 1.
    """

    def __init__(
        self, loop: Loop, wanted: repeat_plan.Plan, progress: Callable[[float], None] | None = None
    ) -> None:
        self._plan = wanted
        self._loop = loop
        self._progress = progress or (lambda part: None)
        self._loops = 1 if wanted.cold else wanted.loops
        self._caches = run_conditions.ColdCaches(wanted=wanted.cold)
        #: Loops run before the repeats, and behind a delay.
        self._warmup = self._queued = 0
        self._own: Queued | None = None
        self._stopped_by: StoppedBy | None = None
        #: The complete repeats so far, and how many functions torch.compile has compiled in them.
        self._runs: list[Times] = []
        self._compiled = 0
        #: Wall seconds of the runs that are left out, as torch.compile compiled in them.
        self._compilations: list[float] = []
        self._notes: list[str] = []

    def run(self) -> None:
        """Run everything.

        Raises:
            DeviceError: a device's L2 cache cannot be emptied.
        """
        self._gc_was_on = gc.isenabled()
        try:
            self._caches.empty()  # raises before the code runs, where it cannot be done
            loop_time = self._warm_up()
            self._loops = self._loops or repeat_plan.round_up(_REPEAT / loop_time)
            self._repeat(self._loops)
            if self._plan.cold:
                self._notes.append(f"L2 cache flushed before each loop: {self._caches}")
            if not self._plan.once and self._plan.warmup != 0:
                self._own = self._run_queued(self._loops)
        finally:
            self._caches.release()
            if self._gc_was_on:  # an interrupt may have come in the end of a run
                gc.enable()

    def _run_in(self, scope: AbstractContextManager[None], loops: int) -> None:
        """Run loops in a scope, without the garbage collector."""
        gc.disable()
        try:
            self._loop.run(loops, scope)
        finally:
            if self._gc_was_on:
                gc.enable()

    def _run(self, loops: int) -> tuple[Times, int]:
        """Run once; return the times, and how many functions torch.compile has compiled."""
        scope = _AsRun(self._caches)
        self._run_in(scope, loops)
        assert scope.times is not None
        return scope.times, scope.compiled

    def _run_repeat(self, loops: int) -> Times:
        """Run a repeat; again where torch.compile has compiled, which then was warm-up.

        Not where the number of all runs is given: then compiling is a part of the repeat.
        """
        again = not self._plan.once and self._plan.warmup != 0
        while True:
            times, compiled = self._run(loops)
            if not (compiled and again and len(self._compilations) < _MOST_COMPILATIONS):
                self._compiled += compiled
                return times
            self._compilations.append(times.wall)
            self._warmup += loops

    def _warm_up(self) -> float:
        """Run the first loop by itself (it may compile, load, allocate), then as many as wanted.

        Returns the seconds of a loop.
        """
        wanted, most, seconds = self._plan.warmup, _MOST_WARM_UP, _WARM_UP
        if self._plan.once or wanted == 0:
            return _REPEAT
        if wanted is not None:
            most, seconds = wanted, math.inf
        elif self._loops is not None and not self._plan.open_end:
            most = min(most, self._loops * self._plan.repeats)  # no more than are timed
        count, busy, until = 1, 0.0, math.inf
        while True:
            last, compiled = self._run(count)
            if compiled:
                self._compilations.append(last.wall)
            self._warmup += count
            busy += last.lower
            until = min(until, perf_counter() + seconds)
            if self._warmup >= most or busy >= seconds or perf_counter() >= until:
                return max(last.wall / count, 1e-7)
            # As many as before: the last half is without a pause.
            left = most - self._warmup
            count = min(self._warmup, left) if wanted is None else left

    def _repeat(self, loops: int) -> None:
        """Run the repeats: as many as wanted, or until precision or time ends them."""
        repeats, limit = self._plan.repeats, self._plan.max_time or repeat_plan.DEFAULT_MAX_TIME
        started, look = perf_counter(), repeat_plan.FIRST_LOOK
        while True:
            self._runs.append(self._run_repeat(loops))
            count, elapsed = len(self._runs), perf_counter() - started
            if not self._plan.open_end:
                self._progress(count / repeats)
                if count >= repeats:
                    return
                continue
            self._progress(min(elapsed / limit, 1.0))
            if count >= look and elapsed >= _LEAST_TIME:
                look = repeat_plan.next_look(count)
                width = repeat_plan.half_width([run.wall for run in self._runs])
                if width is not None and width <= repeat_plan.PRECISION:
                    self._stopped_by = "precision"
                    return
            if elapsed >= limit:
                self._stopped_by = "max-time"
                return

    def _run_queued(self, loops: int) -> Queued | None:
        """Run a few times behind a delay, where the repeats do not show the GPU's own time."""
        runs = self._runs
        if not all(run.readings for run in runs) or not is_bound(1.0, share(runs)):
            return None
        host = statistics.median(run.host for run in runs) / loops
        as_run = statistics.median(run.upper for run in runs) / loops
        count = min(math.ceil(_SAMPLE / max(as_run, 1e-9)), loops, _MOST_LOOPS)
        delay = run_conditions.FACTOR * host * count + run_conditions.MORE
        # With no loops, it shows what the events themselves take.
        empty = self._sample(run_conditions.MORE, 0)
        if delay > run_conditions.LONGEST or not empty:
            return None
        samples: list[dict[int, float]] = []
        enough = len(runs) >= repeat_plan.LEAST_REPEATS
        for _ in range(repeat_plan.LEAST_REPEATS if enough else _QUEUED):
            sample = self._sample(delay, count)
            self._queued += count
            if sample is None:  # the code waits for the GPU, or Python was slow
                return None
            samples.append(sample)
        device = max(samples[0], key=samples[0].__getitem__)
        seconds = tuple(sample[device] for sample in samples)
        # On a card the events of a pool's 32 streams take 44 µs: of few loops, a large part. And
        # where another device takes more than such a part, it may have worked, too.
        events = max(empty.values()) + _STEP
        others = [taken for sample in samples for i, taken in sample.items() if i != device]
        shows_work = max([events, *others]) <= (1 - EXACT) * min(seconds)
        # Longer than as run: then loops overlap, and queued as so few they do not.
        best = min(run.upper for run in runs) * count / loops
        if not shows_work or EXACT * statistics.median(seconds) > best:
            return None
        return Queued(seconds, count, device, events)

    def _sample(self, delay: float, loops: int) -> dict[int, float] | None:
        """Run loops behind a delay; return the seconds of each device, if these are known."""
        scope = _Behind(self._caches, delay)
        with suppress(Exception):  # the user has not asked for this run
            self._run_in(scope, loops)
        return scope.seconds

    def result(self, compile_time: float = 0.0, *, partial: bool = False) -> CudaTiming | None:
        """Aggregate the complete repeats into a result; None if there is none."""
        if not self._runs or self._loops is None:
            return None
        if partial:
            done = plural(len(self._runs), "repeat")
            if not self._plan.open_end:
                done = f"{len(self._runs):,} of {plural(self._plan.repeats, 'repeat')}"
            self._notes.append(f"stopped early, after {done}")
        where = "this run" if self._plan.once else "the repeats, which have the time that it took"
        compiled = not_counted(self._compilations) + counted(self._compiled, where)
        return summarize(
            self._runs,
            loops=self._loops,
            own=self._own,
            warmup=self._warmup,
            queued=self._queued,
            compile_time=compile_time,
            partial=partial,
            precision=repeat_plan.half_width([run.wall for run in self._runs]),
            stopped_by=self._stopped_by,
            notes=(*compiled, *self._notes),
        )
