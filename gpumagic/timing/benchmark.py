"""Repeated runs of a loop: warm-up, the number of loops, the repeats, and queued runs."""

from __future__ import annotations

import gc
import statistics
from collections.abc import Callable
from time import perf_counter
from typing import Any, cast

from gpumagic.cells.timeit_loop import Loop
from gpumagic.cuda import graphs, torch_cuda
from gpumagic.errors import DeviceError
from gpumagic.results.timing import NO_SIGN, CudaTiming, StoppedBy
from gpumagic.system.text import plural
from gpumagic.timing import bottleneck, plan
from gpumagic.timing.bottleneck import Delay
from gpumagic.timing.event_timer import NO_WORK
from gpumagic.timing.run import (
    Run,
    Stopwatch,
    compiled_frames,
    gpu_or_wall,
    gpu_times,
    not_counted,
    summarize,
    without_unseen_work,
)

#: Seconds that a repeat lasts at least when the number of loops is chosen here and the repeats'
#: number is not given (else `plan.MIN_REPEAT_TIME`): enough for the events' own time not to count.
_MIN_SAMPLE_TIME = 5e-3
#: A loop of so many seconds is a sample by itself.
_LONG_ENOUGH = 1e-3
MAX_LOOPS = 10_000_000
#: Seconds of warm-up, and of measuring at least: a GPU that was idle needs a while to reach its
#: clock (triton's ``do_bench`` has 25 ms and 100 ms).
_WARM_UP, _LEAST_TIME = 50e-3, 0.1
#: Runs in a row in which torch.compile may compile (its own limit to recompiling is 8).
_MOST_COMPILATIONS = 8
#: Bytes written to empty a cache, in sizes of the cache.
_CACHES = 2


class _RunScope:
    """The context manager around one run of a loop: cache emptied, clocks, no garbage collection.

    Set `delay` for a queued run. The user has not asked for that one: it has no times where the
    code raises, and nothing is raised.
    """

    def __init__(self, *, cold: bool) -> None:
        self._cold = cold
        #: What is written to empty the L2 cache of each device in use, by ordinal.
        self.buffers: dict[int, Any] = {}
        self._stopwatch = Stopwatch()
        self.delay: Delay | None = None
        #: The last run, if it was complete; and whether torch.compile compiled in it.
        self.run: Run | None = None
        self.compiled = False

    def __enter__(self) -> None:
        self._frames_before = compiled_frames()
        self._gc_was_on = gc.isenabled()
        gc.disable()
        self.empty_caches()
        self._stopwatch.start(self.delay)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> bool:
        try:
            # A run that was cut short has no times: its GPU work is not waited for.
            self.run = self._stopwatch.stop() if kind is None else None
        finally:
            if self._gc_was_on:
                gc.enable()
        self.compiled = compiled_frames() != self._frames_before
        return self.delay is not None and kind is not None and issubclass(kind, Exception)

    def empty_caches(self) -> None:
        """Write more to each device in use than its L2 cache holds, if that is asked for.

        Raises:
            DeviceError: a device does not report its cache's size, or has no memory to write to.
        """
        ordinals = torch_cuda.contexts() if self._cold else ()
        if graphs.under_way(ordinals):
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
        """Free the events and the memory, whatever has ended the last run."""
        self._stopwatch.release()
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
        self._warmup = 0
        self._stopped_by: StoppedBy | None = None
        #: The complete repeats so far.
        self._runs: list[Run] = []
        #: Wall seconds of the runs in which torch.compile compiled.
        self._compilations: list[float] = []
        self._verdict: tuple[Any, str | None] = (None, None)
        self._notes: list[str] = []
        #: The device whose work only queued runs have shown: tiny kernels leave no other sign.
        self._shown: tuple[int, ...] = ()

    def run(self) -> None:
        """Run everything.

        Raises:
            DeviceError: a device's L2 cache cannot be emptied.
        """
        __tracebackhide__ = True
        gc_was_on = gc.isenabled()
        try:
            self._scope.empty_caches()  # raises before the code runs, where it cannot be done
            self._warm_up()
            self._loops = self._loops or self._choose_loops()
            self._repeat(self._loops)
            self._note_cache()
            if not self._plan.exact:
                self._find_bottleneck(self._loops)
        finally:
            # Also after an exception, whose traceback references this object.
            self._scope.close()
            if gc_was_on:  # it may have come before or in the end of a run
                gc.enable()

    def _run(self, loops: int) -> Run:
        """Run until torch.compile has nothing more to compile, and return that run."""
        __tracebackhide__ = True
        while True:
            self._loop.run(loops, self._scope)
            run = self._scope.run
            assert run is not None
            if not self._scope.compiled or len(self._compilations) >= _MOST_COMPILATIONS:
                return run
            self._compilations.append(run.wall)

    def _warm_up(self) -> None:
        """Run the first loop by itself (it may compile, load, allocate), then as many as wanted."""
        __tracebackhide__ = True
        wanted = 1 if self._plan.warmup is None else self._plan.warmup
        until = perf_counter()
        if self._plan.open_end and self._plan.warmup is None:
            until += _WARM_UP
        loops, wall = 1, 0.0
        while self._warmup < wanted or perf_counter() + wall < until:
            self._loop.run(loops, self._scope)
            assert self._scope.run is not None
            wall = self._scope.run.wall
            if self._scope.compiled and len(self._compilations) < _MOST_COMPILATIONS:
                self._compilations.append(wall)
            self._warmup += loops
            loops = max(wanted - self._warmup, 1)

    def _choose_loops(self) -> int:
        """Return the smallest of 1, 2, 5, 10… loops that last as long as a repeat should."""
        __tracebackhide__ = True
        least = _MIN_SAMPLE_TIME if self._plan.open_end else plan.MIN_REPEAT_TIME
        count = 1
        while True:
            wall = (self._run(count)).wall
            alone = self._plan.open_end and count == 1 and wall >= _LONG_ENOUGH
            if alone or wall >= least or count >= MAX_LOOPS:
                return count
            wanted = count * min(least / max(wall, 1e-9), 100.0)
            count = min(plan.round_up(max(wanted, count + 1)), MAX_LOOPS)

    def _repeat(self, loops: int) -> None:
        """Run the repeats: as many as wanted, or until precision or time ends them."""
        __tracebackhide__ = True
        repeats, limit = self._plan.repeats, self._plan.max_time or plan.DEFAULT_MAX_TIME
        started, look = perf_counter(), plan.FIRST_LOOK
        while True:
            self._runs.append(self._run(loops))
            count, elapsed = len(self._runs), perf_counter() - started
            if not self._plan.open_end:
                self._progress(count / repeats)
                if count >= repeats:
                    return
                continue
            self._progress(min(elapsed / limit, 1.0))
            if count >= look and elapsed >= _LEAST_TIME:
                look = plan.next_look(count)
                width = plan.half_width(gpu_or_wall(self._runs))
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

    def _find_bottleneck(self, loops: int) -> None:
        """Run a few times behind a delay, if the runs themselves do not show what limits the code.

        There is no verdict where the code uses several GPUs, and where the delay ended before the
        host had queued everything: then the code waits for the GPU, or the host was slow.
        """
        __tracebackhide__ = True
        gpu = gpu_times(self._runs)
        if len(gpu.devices) != 1 or not gpu.seconds:
            return
        (device,), as_run = gpu.devices, min(gpu.seconds) / loops
        host_time = statistics.median(gpu.hosts) / loops
        count = bottleneck.queued_loops(as_run, host_time, loops)
        if not count or bottleneck.gpu_outlasts_host(gpu.seconds, gpu.hosts):
            return
        # With no loops, it shows what the events of the streams take.
        empty = self._queued(bottleneck.delay(device, 0.0), 0) or 0.0
        queued = bottleneck.delay(device, host_time * count, empty)
        samples: list[float] = []
        for _ in range(bottleneck.SAMPLES):
            seconds = self._queued(queued, count)
            if seconds is None or (gpu.note == NO_SIGN and seconds <= empty + NO_WORK):
                return
            samples.append(seconds / count)
        self._shown = (device,)
        self._verdict = bottleneck.judge(samples, as_run)

    def _queued(self, delay: Delay, loops: int) -> float | None:
        """Return the GPU seconds of a run behind a delay; None if that did not outlast the host."""
        __tracebackhide__ = True
        self._scope.delay = delay
        try:
            self._loop.run(loops, self._scope)
        finally:
            self._scope.delay = None
        reading = None if self._scope.run is None else self._scope.run.readings.get(delay.ordinal)
        return None if reading is None or not reading.queued else reading.seconds

    def result(self, compile_time: float = 0.0, *, partial: bool = False) -> CudaTiming | None:
        """Aggregate the complete repeats into a result; None if there is none."""
        if not self._runs or self._loops is None:
            return None
        bound, evidence = self._verdict
        if partial:
            done = plural(len(self._runs), "repeat")
            if not self._plan.open_end:
                done = f"{len(self._runs):,} of {plural(self._plan.repeats, 'repeat')}"
            self._notes.append(f"stopped early, after {done}")
        timing = summarize(
            self._runs,
            loops=self._loops,
            shown=self._shown,
            warmup=self._warmup,
            compile_time=compile_time,
            partial=partial,
            bound=bound,
            evidence=evidence,
            precision=plan.half_width(gpu_or_wall(self._runs)),
            stopped_by=self._stopped_by,
            notes=(*not_counted(self._compilations), *self._notes),
        )
        return without_unseen_work(timing)
