"""Repeated runs of a loop: warm-up, the repeats, and where these leave it open, queued runs.

With -n 1 -r 1 the code runs once; with -w 0 as often as was asked for.
"""

from __future__ import annotations

import gc
import math
import statistics
from collections.abc import Callable
from time import perf_counter
from typing import Any, cast

from gpumagic.cells.timeit_loop import Loop
from gpumagic.cuda import streams, torch_cuda
from gpumagic.errors import DeviceError
from gpumagic.results.timing import EXACT, CudaTiming, StoppedBy
from gpumagic.system.text import plural
from gpumagic.timing import plan, queued
from gpumagic.timing.event_timer import Times, prepare, read, start, stop
from gpumagic.timing.run import (
    Queued,
    compiled_frames,
    counted,
    not_counted,
    share,
    summarize,
)

#: Seconds of warm-up after the first loop, back to back, and of measuring at least: a GPU that was
#: idle needs a while to reach its clock (triton's ``do_bench`` has 25 ms and 100 ms). Then the most
#: loops of warm-up.
_WARM_UP, _LEAST_TIME, _MOST_WARM_UP = 50e-3, 0.1, 2**20
#: Seconds that a repeat lasts at least where the number of loops is chosen here.
_REPEAT = 5e-3
#: Queued runs; as many as an interval needs, where the repeats have one. Seconds of the GPU and
#: loops of one: a queue holds some 1,000 launches, and a host that finds it full waits.
_QUEUED, _SAMPLE, _MOST_LOOPS = 3, 1e-3, 100
#: Seconds: the resolution of events, with a margin.
_STEP = 1e-6
#: Runs in a row in which torch.compile may compile (its own limit to recompiling is 8).
_MOST_COMPILATIONS = 8
#: Bytes written to empty a cache, in sizes of the cache.
_CACHES = 2


class _RunScope:
    """The context manager around one run of a loop: cache emptied, clocks, no garbage collection.

    Set `delay` to seconds for a queued run. The user has not asked for that one: it has no times
    where the code raises, and nothing is raised.
    """

    def __init__(self, *, cold: bool) -> None:
        self._cold = cold
        #: What is written to empty the L2 cache of each device in use, by ordinal.
        self.buffers: dict[int, Any] = {}
        self.delay: float | None = None
        #: What the last run has begun with, and its times, if it was complete.
        self._begun: Any = None
        self.times: Any = None
        #: The functions that torch.compile compiled in it.
        self.compiled = 0

    def __enter__(self) -> None:
        self._frames_before = compiled_frames()
        self._gc_was_on = gc.isenabled()
        gc.disable()
        self.empty_caches()
        self._begun = start(prepare()) if self.delay is None else queued.start(self.delay)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> bool:
        self.times = None
        try:
            if self.delay is not None:
                self.times = queued.read(self._begun) if kind is None else None
            elif kind is None:  # the GPU work of a run that was cut short is not waited for
                self.times = read(stop(self._begun))
        finally:
            self._begun = None
            if self._gc_was_on:
                gc.enable()
        self.compiled = compiled_frames() - self._frames_before
        return self.delay is not None and kind is not None and issubclass(kind, Exception)

    def empty_caches(self) -> None:
        """Write more to each device in use than its L2 cache holds, if that is asked for.

        Raises:
            DeviceError: a device does not report its cache's size, or has no memory to write to.
        """
        ordinals = torch_cuda.contexts() if self._cold else ()
        if streams.under_way(ordinals):
            return  # writing would become a part of the graph, and there is no GPU time anyway
        torch = cast(Any, torch_cuda.loaded())
        for ordinal in ordinals:
            size = getattr(torch.cuda.get_device_properties(ordinal), "L2_cache_size", 0)
            if not size:
                raise DeviceError(f"cuda:{ordinal} does not report the size of its L2 cache")
            if ordinal not in self.buffers:
                try:
                    self.buffers[ordinal] = torch.empty(
                        _CACHES * size, dtype=torch.uint8, device=f"cuda:{ordinal}"
                    )
                except torch.OutOfMemoryError:
                    raise DeviceError(
                        f"no memory on cuda:{ordinal} to empty its L2 cache with"
                    ) from None
            self.buffers[ordinal].zero_()

    def close(self) -> None:
        """Free the events and the memory, whatever has ended the last run.

        An event that is garbage may be freed in a process that was forked meanwhile: there its
        destructor ends the process, as CUDA has no context.
        """
        self._begun = None
        self.buffers.clear()


class Benchmark:
    """Runs a loop as often as a plan asks for, and aggregates the runs.

    ``progress`` is called between repeats with the part that is done, 0 to 1.
    """

    def __init__(
        self, loop: Loop, wanted: plan.Plan, progress: Callable[[float], None] | None = None
    ) -> None:
        self._plan = wanted
        self._loop = loop
        self._progress = progress or (lambda part: None)
        self._scope = _RunScope(cold=wanted.cold)
        self._loops = 1 if wanted.cold else wanted.loops
        #: Loops run before the repeats, and behind a delay.
        self._warmup = self._queued = 0
        self._own: Queued | None = None
        self._stopped_by: StoppedBy | None = None
        #: The complete repeats so far.
        self._runs: list[Times] = []
        #: Wall seconds of the runs in which torch.compile compiled.
        self._compilations: list[float] = []
        self._notes: list[str] = []

    def run(self) -> None:
        """Run everything.

        Raises:
            DeviceError: a device's L2 cache cannot be emptied.
        """
        gc_was_on = gc.isenabled()
        try:
            self._scope.empty_caches()  # raises before the code runs, where it cannot be done
            loop_time = self._warm_up()
            self._loops = self._loops or plan.round_up(_REPEAT / loop_time)
            self._repeat(self._loops)
            self._note_cache()
            if not self._plan.once and self._plan.warmup != 0:
                self._run_queued(self._loops)
        finally:
            # Also after an exception, whose traceback references this object.
            self._scope.close()
            if gc_was_on:  # it may have come before or in the end of a run
                gc.enable()

    def _run(self, loops: int, *, again: bool = True) -> Times:
        """Run; ``again`` where torch.compile has compiled in the run, which then is warm-up."""
        while True:
            self._loop.run(loops, self._scope)
            times: Times = self._scope.times
            if not self._scope.compiled or len(self._compilations) >= _MOST_COMPILATIONS:
                return times
            self._compilations.append(times.wall)
            if not again:
                return times
            self._warmup += loops

    def _warm_up(self) -> float:
        """Run the first loop by itself (it may compile, load, allocate), then as many as wanted.

        Returns the seconds of a loop.
        """
        exact = self._plan.warmup is not None
        wanted = 1 if self._plan.warmup is None else self._plan.warmup
        if self._plan.once or (exact and not wanted):
            return _REPEAT
        last = self._run(1, again=False)
        self._warmup = count = 1
        busy, until = last.lower, perf_counter() + _WARM_UP * (not exact)
        while self._warmup < wanted or (
            busy < _WARM_UP and perf_counter() < until and self._warmup < _MOST_WARM_UP
        ):
            # As many as before: the last half is without a pause.
            count = wanted - self._warmup if exact else self._warmup
            last = self._run(count, again=False)
            self._warmup += count
            busy += last.lower
        return max(last.wall / count, 1e-7)

    def _repeat(self, loops: int) -> None:
        """Run the repeats: as many as wanted, or until precision or time ends them."""
        repeats, limit = self._plan.repeats, self._plan.max_time or plan.DEFAULT_MAX_TIME
        started, look = perf_counter(), plan.FIRST_LOOK
        while True:
            self._runs.append(self._run(loops, again=not self._plan.once))
            count, elapsed = len(self._runs), perf_counter() - started
            if not self._plan.open_end:
                self._progress(count / repeats)
                if count >= repeats:
                    return
                continue
            self._progress(min(elapsed / limit, 1.0))
            if count >= look and elapsed >= _LEAST_TIME:
                look = plan.next_look(count)
                width = plan.half_width([run.wall for run in self._runs])
                if width is not None and width <= plan.PRECISION:
                    self._stopped_by = "precision"
                    return
            if elapsed >= limit:
                self._stopped_by = "max-time"
                return

    def _note_cache(self) -> None:
        """Note the caches that were emptied."""
        if self._plan.cold:
            sizes = [
                f"cuda:{ordinal} {buffer.numel() // _CACHES / 2**20:.3g} MiB"
                for ordinal, buffer in self._scope.buffers.items()
            ]
            what = ", ".join(sizes) or "there is no GPU in use"
            self._notes.append(f"L2 cache flushed before each loop: {what}")

    def _run_queued(self, loops: int) -> None:
        """Run a few times behind a delay, where the repeats do not show the GPU's own time."""
        known = [run for run in self._runs if run.readings]
        if not known or share(self._runs) >= EXACT:
            return
        host = statistics.median(run.host for run in known) / loops
        as_run = statistics.median(run.upper for run in known) / loops
        count = min(math.ceil(_SAMPLE / max(as_run, 1e-9)), loops, _MOST_LOOPS)
        delay = queued.FACTOR * host * count + queued.MORE
        # With no loops, it shows what the events themselves take.
        empty = self._behind(queued.MORE, 0)
        if delay > queued.LONGEST or empty is None:
            return
        samples: list[tuple[float, int]] = []
        runs = _QUEUED if len(self._runs) < plan.LEAST_REPEATS else plan.LEAST_REPEATS
        for _ in range(runs):
            sample = self._behind(delay, count)
            self._queued += count
            if sample is None:  # the code waits for the GPU, or Python was slow
                return
            samples.append(sample)
        seconds, devices = zip(*samples, strict=True)
        taken, best = statistics.median(seconds), min(run.upper for run in known) * count / loops
        # On a card the events of a pool's 32 streams take 44 µs: of few loops, a large part.
        shows_work = empty[0] + _STEP <= (1 - EXACT) * taken
        # Longer than as run: then loops overlap, and queued as so few they do not.
        if shows_work and EXACT * taken <= best and len({*devices}) == 1:
            self._own = Queued(seconds, count, devices[0])

    def _behind(self, delay: float, loops: int) -> tuple[float, int] | None:
        """Run loops behind a delay; return the GPU's seconds and the device, if these are known."""
        self._scope.delay = delay
        try:
            self._loop.run(loops, self._scope)
        finally:
            self._scope.delay = None
        found: tuple[float, int] | None = self._scope.times
        return found

    def result(self, compile_time: float = 0.0, *, partial: bool = False) -> CudaTiming | None:
        """Aggregate the complete repeats into a result; None if there is none."""
        if not self._runs or self._loops is None:
            return None
        if partial:
            done = plural(len(self._runs), "repeat")
            if not self._plan.open_end:
                done = f"{len(self._runs):,} of {plural(self._plan.repeats, 'repeat')}"
            self._notes.append(f"stopped early, after {done}")
        compiled = not_counted(self._compilations)
        if self._plan.once:
            compiled = counted(self._scope.compiled)
        return summarize(
            self._runs,
            loops=self._loops,
            own=self._own,
            warmup=self._warmup,
            queued=self._queued,
            compile_time=compile_time,
            partial=partial,
            precision=plan.half_width([run.wall for run in self._runs]),
            stopped_by=self._stopped_by,
            notes=(*compiled, *self._notes),
        )
