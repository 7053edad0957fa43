"""Repeated runs of a loop: warm-up, the repeats, and where these leave it open, queued runs.

With -n 1 -r 1 the code runs once; with -w 0 as often as was asked for.
"""

from __future__ import annotations

import gc
import math
import statistics
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Generic, TypeVar

from gpumagic.cells.timeit_loop import Loop
from gpumagic.results.timing import EXACT, CudaTiming, StoppedBy, is_bound
from gpumagic.timing import event_timer, repeat_plan, run_conditions, summary
from gpumagic.timing.repeat_plan import Plan
from gpumagic.timing.run_times import Times
from gpumagic.timing.summary import Queued, summarize
from gpumagic.wording import plural

_Begun = TypeVar("_Begun")
_Found = TypeVar("_Found")

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


@dataclass(frozen=True)
class Runs:
    """What has run so far."""

    plan: Plan
    compile_time: float
    #: Those of a repeat.
    loops: int
    repeats: tuple[Times, ...] = ()
    #: The part of the repeats that is done, 0 to 1; and what ended them, if not their number.
    part: float = 0.0
    stopped_by: StoppedBy | None = None
    #: Loops run before the repeats, and behind a delay.
    warmup: int = 0
    queued: int = 0
    own: Queued | None = None
    #: The part of the repeats' time for which this thread waited for a processor.
    processor_wait: float | None = None
    #: Wall seconds of the runs that are left out, as torch.compile compiled in them; and how many
    #: functions it has compiled in the repeats.
    compilations: tuple[float, ...] = ()
    compiled: int = 0
    #: Whether all has run.
    is_complete: bool = False
    notes: tuple[str, ...] = ()

    @property
    def precision(self) -> float | None:
        return repeat_plan.half_width([run.wall for run in self.repeats])

    def result(self) -> CudaTiming:
        """Aggregate the repeats."""
        early: tuple[str, ...] = ()
        if not self.is_complete:
            done = plural(len(self.repeats), "repeat")
            if not self.plan.open_end:
                done = f"{len(self.repeats):,} of {plural(self.plan.repeats, 'repeat')}"
            early = (f"stopped early, after {done}",)
        compiled = summary.counted(self.compiled, repeats=len(self.repeats))
        return summarize(
            self.repeats,
            loops=self.loops,
            own=self.own,
            warmup=self.warmup,
            queued=self.queued,
            processor_wait=self.processor_wait,
            compile_time=self.compile_time,
            partial=not self.is_complete,
            precision=self.precision,
            stopped_by=self.stopped_by,
            notes=(*summary.not_counted(self.compilations), *compiled, *self.notes, *early),
        )


#: Is given what has run after each repeat.
Note = Callable[[Runs], object]


def benchmark(loop: Loop, plan: Plan, note: Note = lambda _: None) -> Runs:
    """Run a loop as often as a plan asks for; ``note`` gets what has run after each repeat.

    No generator: that would make a RuntimeError of a StopIteration of the user's.

    Raises:
        DeviceError: a device's L2 cache cannot be emptied.
    """
    runner = _Runner(loop, plan)
    try:
        runner.caches.empty()  # raises before the code runs, where it cannot be done
        warm, began, waited = runner.warmed_up(), perf_counter(), run_conditions.processor_wait()
        done = runner.repeats(warm, note)
        if waited is not None and (now := run_conditions.processor_wait()) is not None:
            part = (now - waited) / (perf_counter() - began)
            done = replace(done, processor_wait=part, notes=(*run_conditions.wait_notes(part),))
        if plan.cold:
            cold = f"L2 cache flushed before each loop: {runner.caches}"
            done = replace(done, notes=(*done.notes, cold))
        if not plan.is_exact:
            own, queued = runner.queued(done)
            done = replace(done, own=own, queued=queued)
        return replace(done, is_complete=True)
    finally:
        runner.caches.release()
        if runner.collects:  # an interrupt may have come in the end of a run
            gc.enable()


class _Scope(AbstractContextManager[None], Generic[_Begun, _Found]):
    """Calls ``begin`` before its body, and ``end`` with its value after it if nothing is raised."""

    found: _Found

    def __init__(self, begin: Callable[[], _Begun], end: Callable[[_Begun], _Found]) -> None:
        self._begin, self._end = begin, end

    def __enter__(self) -> None:
        self._begun = self._begin()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        begun = self._begun
        del self._begun  # a traceback, which keeps this scope, is to keep no events
        if kind is None:
            self.found = self._end(begun)


class _Runner:
    """Runs a loop in the conditions of a plan."""

    def __init__(self, loop: Loop, plan: Plan) -> None:
        self._loop, self._plan = loop, plan
        self.caches = run_conditions.ColdCaches(wanted=plan.cold)
        #: Whether the garbage collector was on.
        self.collects = gc.isenabled()

    def _run(
        self, loops: int, begin: Callable[[], _Begun], end: Callable[[_Begun], _Found]
    ) -> _Found:
        """Run loops between ``begin`` and ``end``; without the garbage collector."""
        scope = _Scope(begin, end)
        gc.disable()
        try:
            self._loop.run(loops, scope)
        finally:
            if self.collects:
                gc.enable()
        return scope.found

    def _timed(self, loops: int) -> tuple[Times, int]:
        """Run loops; return the times, and how many functions torch.compile has compiled."""

        def begin() -> tuple[int, event_timer.Started]:
            self.caches.empty()
            return summary.compiled_frames(), event_timer.start()

        def end(begun: tuple[int, event_timer.Started]) -> tuple[Times, int]:
            before, started = begun
            return event_timer.read(event_timer.stop(started)), summary.compiled_frames() - before

        return self._run(loops, begin, end)

    def warmed_up(self) -> Runs:
        """Run the first loop by itself (it may compile, load, allocate), then as many as wanted."""
        plan, most, seconds = self._plan, _MOST_WARM_UP, _WARM_UP
        loops = 1 if plan.cold else plan.loops
        begin = Runs(plan, self._loop.compile_time, loops or 1)
        if plan.is_exact:
            return begin
        if plan.warmup is not None:
            most, seconds = plan.warmup, math.inf
        elif loops is not None and not plan.open_end:
            most = min(most, loops * plan.repeats)  # no more than are timed
        count, warmup, busy, until = 1, 0, 0.0, math.inf
        compilations: list[float] = []
        while True:
            last, compiled = self._timed(count)
            if compiled:
                compilations.append(last.wall)
            warmup += count
            busy += last.lower
            until = min(until, perf_counter() + seconds)
            if warmup >= most or busy >= seconds or perf_counter() >= until:
                loops = loops or repeat_plan.round_up(_REPEAT / max(last.wall / count, 1e-7))
                return replace(begin, loops=loops, warmup=warmup, compilations=tuple(compilations))
            # As many as before: the last half is without a pause.
            left = most - warmup
            count = min(warmup, left) if plan.warmup is None else left

    def repeats(self, done: Runs, note: Note) -> Runs:
        """Run the repeats: as many as wanted, or until precision or time ends them."""
        plan, started, look = self._plan, perf_counter(), repeat_plan.FIRST_LOOK
        limit = plan.max_time or repeat_plan.DEFAULT_MAX_TIME
        while done.stopped_by is None and (plan.open_end or len(done.repeats) < plan.repeats):
            done = self._repeated(done)
            count, elapsed = len(done.repeats), perf_counter() - started
            if not plan.open_end:
                note(done := replace(done, part=count / plan.repeats))
                continue
            stopped_by: StoppedBy | None = "max-time" if elapsed >= limit else None
            if count >= look and elapsed >= _LEAST_TIME:
                look = repeat_plan.next_look(count)
                if done.precision is not None and done.precision <= repeat_plan.PRECISION:
                    stopped_by = "precision"
            note(done := replace(done, part=min(elapsed / limit, 1.0), stopped_by=stopped_by))
        return done

    def _repeated(self, done: Runs) -> Runs:
        """Run a repeat; again where torch.compile has compiled, which then was warm-up.

        Not where the number of all runs is given: then compiling is a part of the repeat.
        """
        while True:
            times, compiled = self._timed(done.loops)
            again = not self._plan.is_exact and len(done.compilations) < _MOST_COMPILATIONS
            if not (compiled and again):
                repeats, compiled = (*done.repeats, times), done.compiled + compiled
                return replace(done, repeats=repeats, compiled=compiled)
            compilations, warmup = (*done.compilations, times.wall), done.warmup + done.loops
            done = replace(done, compilations=compilations, warmup=warmup)

    def queued(self, done: Runs) -> tuple[Queued | None, int]:
        """Run a few times behind a delay, where the repeats do not show the GPU's own time.

        Returns what that shows, and how many loops have run.
        """
        runs, loops = done.repeats, done.loops
        if not all(run.readings for run in runs) or not is_bound(1.0, summary.share(runs)):
            return None, 0
        host = statistics.median(run.host for run in runs) / loops
        as_run = statistics.median(run.upper for run in runs) / loops
        count = min(math.ceil(_SAMPLE / max(as_run, 1e-9)), loops, _MOST_LOOPS)
        delay = run_conditions.FACTOR * host * count + run_conditions.MORE
        # With no loops, it shows what the events themselves take.
        empty = self._sample(run_conditions.MORE, 0)
        if delay > run_conditions.LONGEST or not empty:
            return None, 0
        samples: list[dict[int, float]] = []
        enough = len(runs) >= repeat_plan.LEAST_REPEATS
        for number in range(1, (repeat_plan.LEAST_REPEATS if enough else _QUEUED) + 1):
            sample = self._sample(delay, count)
            if sample is None:  # the code waits for the GPU, or Python was slow
                return None, number * count
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
        is_own = shows_work and EXACT * statistics.median(seconds) <= best
        return Queued(seconds, count, device, events) if is_own else None, len(samples) * count

    def _sample(self, delay: float, loops: int) -> dict[int, float] | None:
        """Run loops behind a delay; return the seconds of each device, if these are known."""

        def begin() -> run_conditions.Delayed:
            self.caches.empty()
            return run_conditions.start(delay)

        with suppress(Exception):  # the user has not asked for this run
            return self._run(loops, begin, run_conditions.read)
        return None
