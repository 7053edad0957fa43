"""Repeated runs of a loop: warm-up, the repeats, and where these leave it open, queued runs.

With -n 1 -r 1 the code runs once; with -w 0 as often as was asked for.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from time import perf_counter

from gpumagic.cells.timeit_loop import Loop
from gpumagic.results.timing.cuda_timing import CudaTiming, StoppedBy
from gpumagic.system import system_files
from gpumagic.timing import compilation, event_timer, precision, summary
from gpumagic.timing.repeated import repeat_plan
from gpumagic.timing.repeated.cold_caches import ColdCaches
from gpumagic.timing.repeated.queued_runs import run_queued
from gpumagic.timing.repeated.repeat_plan import Plan
from gpumagic.timing.run_times import Queued, Times
from gpumagic.wording import plural

#: Seconds of warm-up after the first loop, back to back: a GPU that was idle needs a while to reach
#: its clock (triton's ``do_bench`` has 25 ms).
_WARM_UP = 50e-3
#: The most loops of warm-up, where neither their number nor the number of timed loops is given.
_MOST_WARM_UP = 2**20
#: Seconds of measuring at least, unless the repeats are counted (``do_bench`` has 100 ms).
_LEAST_TIME = 0.1
#: Seconds that a repeat lasts at least where the number of loops is chosen here.
_REPEAT = 5e-3
#: Runs in a row in which torch.compile may compile (its own limit to recompiling is 8).
_MOST_COMPILATIONS = 8


@dataclass(frozen=True)
class Runs:
    """What has run so far."""

    plan: Plan
    compile_time: float
    #: The number of loops of a repeat.
    loops: int
    repeats: tuple[Times, ...] = ()
    #: The part of the repeats that is done, 0 to 1; what ended them, if not their number.
    part: float = 0.0
    stopped_by: StoppedBy | None = None
    #: Loops run before the repeats, and behind a delay.
    warmup: int = 0
    queued: int = 0
    own: Queued | None = None
    #: The part of the repeats' time for which this thread waited for a processor.
    processor_wait: float | None = None
    #: Wall seconds of the runs that are left out, as torch.compile compiled in them; and the number
    #: of functions that it compiled in the repeats.
    compilations: tuple[float, ...] = ()
    compiled: int = 0
    #: With ``--cold``: the caches that were emptied before each loop, or why none was.
    cold: str = ""
    #: Whether all repeats have run.
    is_complete: bool = False

    @property
    def precision(self) -> float | None:
        return precision.half_width([run.wall for run in self.repeats])

    def result(self) -> CudaTiming:
        """Aggregate the repeats."""
        notes = [
            *compilation.not_counted(self.compilations),
            *compilation.counted(self.compiled, repeats=len(self.repeats)),
            *summary.waited_for_a_processor(self.processor_wait),
        ]
        if self.cold:
            notes.append(self.cold)
        if not self.is_complete:
            wanted = len(self.repeats) if self.plan.open_end else self.plan.repeats
            done = "" if self.plan.open_end else f"{len(self.repeats):,} of "
            notes.append(f"stopped early, after {done}{plural(wanted, 'repeat')}")
        timing = summary.summarize(self.repeats, loops=self.loops, own=self.own)
        return replace(
            timing,
            warmup=self.warmup,
            queued=self.queued,
            processor_wait=self.processor_wait,
            compile_time=self.compile_time,
            partial=not self.is_complete,
            precision=self.precision,
            stopped_by=self.stopped_by,
            notes=(*timing.notes, *notes),
        )


#: Is given what has run after each repeat, and before the queued runs.
Note = Callable[[Runs], object]


def benchmark(loop: Loop, plan: Plan, note: Note = lambda _: None) -> Runs:
    """Run a loop as often as a plan asks for; ``note`` gets what has run until then.

    No generator: that would make a RuntimeError of a StopIteration of the user's.

    Raises:
        DeviceError: a device's L2 cache cannot be emptied.
    """
    runner = _Runner(loop, plan)
    try:
        if plan.cold:
            runner.caches.empty()  # raises before the code runs, where it cannot be done
        warm, began, waited = runner.warmed_up(), perf_counter(), _processor_wait()
        done = runner.repeats(warm, note)
        if waited is not None and (now := _processor_wait()) is not None:
            done = replace(done, processor_wait=(now - waited) / (perf_counter() - began))
        if plan.cold:
            done = replace(done, cold=runner.caches.note())
        done = replace(done, is_complete=True)
        if not plan.is_exact:
            note(done)  # an interrupt of the queued runs leaves a whole result, without their time
            own, queued = run_queued(runner.run, done.repeats, done.loops)
            done = replace(done, own=own, queued=queued)
        return done
    finally:
        runner.caches.release()
        if runner.collects:  # an interrupt may have come in the end of a run
            gc.enable()


def _processor_wait() -> float | None:
    """Return the seconds for which this thread has waited for a processor; None where not known.

    Linux counts the nanoseconds that a thread ran, and that it waited: ``/proc/PID/schedstat``.
    """
    ran, waited, *_ = (system_files.read("/proc/thread-self/schedstat") or "0 0").split()
    return int(waited) / 1e9 if int(ran) else None


class _Timed(AbstractContextManager[None]):
    """Times its body, if nothing is raised; and counts what torch.compile compiles in it."""

    def __enter__(self) -> None:
        self._compiled_before = compilation.compiled_functions()
        self._started = event_timer.start()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        started = self._started
        del self._started  # a traceback, which keeps this scope, is to keep no events
        if kind is None:
            self.times = event_timer.read(event_timer.stop(started))
            self.compiled = compilation.compiled_functions() - self._compiled_before


class _Runner:
    """Runs a loop in the conditions of a plan."""

    def __init__(self, loop: Loop, plan: Plan) -> None:
        self._loop, self._plan = loop, plan
        self.caches = ColdCaches()
        #: Whether the garbage collector was on.
        self.collects = gc.isenabled()

    def run(self, loops: int, scope: AbstractContextManager[None]) -> None:
        """Run loops in a scope; without the garbage collector."""
        gc.disable()
        try:
            self._loop.run(loops, self.caches.emptied(scope) if self._plan.cold else scope)
        finally:
            if self.collects:
                gc.enable()

    def _timed(self, loops: int) -> tuple[Times, int]:
        """Run loops; return the times, and how many functions torch.compile has compiled."""
        self.run(loops, timed := _Timed())
        return timed.times, timed.compiled

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
            compilations += [last.wall] if compiled else []
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
