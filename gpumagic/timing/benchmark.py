"""Repeated runs of a loop: warm-up, the repeats, and where these leave it open, queued runs.

With -n 1 -r 1 the code runs once; with -w 0 as often as was asked for.
"""

from __future__ import annotations

import gc
import math
import statistics
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from time import perf_counter
from typing import Any, cast

from gpumagic.cells.timeit_loop import Loop
from gpumagic.cuda import streams, torch_cuda
from gpumagic.errors import DeviceError
from gpumagic.results.timing import EXACT, CudaTiming, StoppedBy, is_bound
from gpumagic.system.text import plural
from gpumagic.timing import queued_runs, repeat_plan
from gpumagic.timing.event_timer import Times, read, start, stop
from gpumagic.timing.summary import (
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
        #: Loops run before the repeats, and behind a delay.
        self._warmup = self._queued = 0
        self._own: Queued | None = None
        self._stopped_by: StoppedBy | None = None
        #: The complete repeats so far.
        self._runs: list[Times] = []
        #: Wall seconds of the runs in which torch.compile compiled.
        self._compilations: list[float] = []
        self._notes: list[str] = []
        #: What is written to empty the L2 cache of each device in use, by ordinal.
        self._buffers: dict[int, Any] = {}
        #: What the last run has begun with, and found; the functions that were compiled in it.
        self._begun: Any = None
        self._found: Any = None
        self._compiled = 0

    def run(self) -> None:
        """Run everything.

        Raises:
            DeviceError: a device's L2 cache cannot be emptied.
        """
        self._gc_was_on = gc.isenabled()
        try:
            self._empty_caches()  # raises before the code runs, where it cannot be done
            loop_time = self._warm_up()
            self._loops = self._loops or repeat_plan.round_up(_REPEAT / loop_time)
            self._repeat(self._loops)
            if self._plan.cold:
                self._notes.append(f"L2 cache flushed before each loop: {self._caches()}")
            if not self._plan.once and self._plan.warmup != 0:
                self._run_queued(self._loops)
        finally:
            # Also after an exception, whose traceback references this object: an event that is
            # garbage may be freed in a process that was forked meanwhile, and ends that.
            self._begun = None
            self._buffers.clear()
            if self._gc_was_on:  # an interrupt may have come in the end of a run
                gc.enable()

    def _run_in(self, scope: AbstractContextManager[None], loops: int) -> None:
        """Run loops in a scope, without the garbage collector."""
        self._found = None
        gc.disable()
        try:
            self._loop.run(loops, scope)
        finally:
            if self._gc_was_on:
                gc.enable()

    @contextmanager
    def _as_run(self) -> Iterator[None]:
        """Time what runs in the scope; where that is cut short, its GPU work is not waited for."""
        frames_before = compiled_frames()
        self._empty_caches()
        self._begun = start()
        yield
        self._found = read(stop(self._begun))
        self._compiled = compiled_frames() - frames_before

    @contextmanager
    def _behind(self, delay: float) -> Iterator[None]:
        """Run what runs in the scope behind a delay of some seconds."""
        self._empty_caches()
        self._begun = queued_runs.start(delay)
        yield
        self._found = queued_runs.read(self._begun)

    def _empty_caches(self) -> None:
        """Write more to each device in use than its L2 cache holds, if that is asked for.

        Raises:
            DeviceError: a device does not report its cache's size, or has no memory to write to.
        """
        ordinals = torch_cuda.contexts() if self._plan.cold else ()
        if streams.under_way(ordinals):
            return  # writing would become a part of the graph, and there is no GPU time anyway
        torch = cast(Any, torch_cuda.loaded())
        for ordinal in ordinals:
            size = getattr(torch.cuda.get_device_properties(ordinal), "L2_cache_size", 0)
            if not size:
                raise DeviceError(f"cuda:{ordinal} does not report the size of its L2 cache")
            if ordinal not in self._buffers:
                try:
                    self._buffers[ordinal] = torch.empty(
                        _CACHES * size, dtype=torch.uint8, device=f"cuda:{ordinal}"
                    )
                except torch.OutOfMemoryError:
                    raise DeviceError(
                        f"no memory on cuda:{ordinal} to empty its L2 cache with"
                    ) from None
            self._buffers[ordinal].zero_()

    def _caches(self) -> str:
        sizes = [
            f"cuda:{ordinal} {buffer.numel() // _CACHES / 2**20:.3g} MiB"
            for ordinal, buffer in self._buffers.items()
        ]
        return ", ".join(sizes) or "there is no GPU in use"

    def _run(self, loops: int, *, again: bool = True) -> Times:
        """Run; ``again`` where torch.compile has compiled in the run, which then is warm-up."""
        while True:
            self._run_in(self._as_run(), loops)
            times: Times = self._found
            if not self._compiled or len(self._compilations) >= _MOST_COMPILATIONS:
                return times
            self._compilations.append(times.wall)
            if not again:
                return times
            self._warmup += loops

    def _warm_up(self) -> float:
        """Run the first loop by itself (it may compile, load, allocate), then as many as wanted.

        Returns the seconds of a loop.
        """
        wanted = self._plan.warmup
        if self._plan.once or wanted == 0:
            return _REPEAT
        last = self._run(1, again=False)
        self._warmup = count = 1
        most, seconds = (_MOST_WARM_UP, _WARM_UP) if wanted is None else (wanted, math.inf)
        busy, until = last.lower, perf_counter() + seconds
        while self._warmup < most and busy < seconds and perf_counter() < until:
            # As many as before: the last half is without a pause.
            count = self._warmup if wanted is None else wanted - self._warmup
            last = self._run(count, again=False)
            self._warmup += count
            busy += last.lower
        return max(last.wall / count, 1e-7)

    def _repeat(self, loops: int) -> None:
        """Run the repeats: as many as wanted, or until precision or time ends them."""
        repeats, limit = self._plan.repeats, self._plan.max_time or repeat_plan.DEFAULT_MAX_TIME
        started, look = perf_counter(), repeat_plan.FIRST_LOOK
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
                look = repeat_plan.next_look(count)
                width = repeat_plan.half_width([run.wall for run in self._runs])
                if width is not None and width <= repeat_plan.PRECISION:
                    self._stopped_by = "precision"
                    return
            if elapsed >= limit:
                self._stopped_by = "max-time"
                return

    def _run_queued(self, loops: int) -> None:
        """Run a few times behind a delay, where the repeats do not show the GPU's own time."""
        known = [run for run in self._runs if run.readings]
        if not known or not is_bound(1.0, share(self._runs)):
            return
        host = statistics.median(run.host for run in known) / loops
        as_run = statistics.median(run.upper for run in known) / loops
        count = min(math.ceil(_SAMPLE / max(as_run, 1e-9)), loops, _MOST_LOOPS)
        delay = queued_runs.FACTOR * host * count + queued_runs.MORE
        # With no loops, it shows what the events themselves take.
        empty = self._sample(queued_runs.MORE, 0)
        if delay > queued_runs.LONGEST or not empty:
            return
        samples: list[dict[int, float]] = []
        for _ in range(
            _QUEUED if len(self._runs) < repeat_plan.LEAST_REPEATS else repeat_plan.LEAST_REPEATS
        ):
            sample = self._sample(delay, count)
            self._queued += count
            if sample is None:  # the code waits for the GPU, or Python was slow
                return
            samples.append(sample)
        device = max(samples[0], key=samples[0].__getitem__)
        seconds = tuple(sample[device] for sample in samples)
        # On a card the events of a pool's 32 streams take 44 µs: of few loops, a large part. And
        # where another device takes more than such a part, it may have worked, too.
        events = max(empty.values()) + _STEP
        others = [taken for sample in samples for i, taken in sample.items() if i != device]
        shows_work = max([events, *others]) <= (1 - EXACT) * min(seconds)
        # Longer than as run: then loops overlap, and queued as so few they do not.
        best = min(run.upper for run in known) * count / loops
        if shows_work and EXACT * statistics.median(seconds) <= best:
            self._own = Queued(seconds, count, device, events)

    def _sample(self, delay: float, loops: int) -> dict[int, float] | None:
        """Run loops behind a delay; return the seconds of each device, if these are known."""
        with suppress(Exception):  # the user has not asked for this run
            self._run_in(self._behind(delay), loops)
        return cast("dict[int, float] | None", self._found)

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
            compiled = counted(self._compiled)
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
