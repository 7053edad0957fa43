"""Repeated runs of a loop: warm-up, the number of loops, the repeats, and queued samples."""

from __future__ import annotations

import gc
import statistics
from collections.abc import Callable, Sequence
from time import perf_counter

from gpumagic.cells.timeit_loop import Loop
from gpumagic.cuda import torch_cuda
from gpumagic.results import CudaTiming
from gpumagic.results.quality import Quality, StoppedBy
from gpumagic.timing import bottleneck, stopping_rule
from gpumagic.timing.compilations import CompilationRecord, compiled_frames
from gpumagic.timing.conditions import Clocks, Flush
from gpumagic.timing.host_speed import HostSpeed
from gpumagic.timing.launch_overhead import Delay, QueuedSampling
from gpumagic.timing.plan import (
    DEFAULT_MAX_TIME,
    DEFAULT_PRECISION,
    MIN_REPEAT_TIME,
    Plan,
    round_up,
)
from gpumagic.timing.run import (
    Run,
    Stopwatch,
    devices_used,
    gpu_or_wall,
    summarize,
    without_unseen_work,
)

#: Seconds that a repeat lasts at least when the number of loops is chosen here and the repeats'
#: number is not given (else `MIN_REPEAT_TIME`): enough for the events' own time not to count.
_MIN_SAMPLE_TIME = 5e-3
#: A loop of so many seconds is a sample by itself.
_LONG_ENOUGH = 1e-3
MAX_LOOPS = 10_000_000
#: Seconds of warm-up, and of measuring at least: a GPU that was idle needs a while to reach its
#: clock (triton's ``do_bench`` has 25 ms and 100 ms).
_WARM_UP, _LEAST_TIME = 50e-3, 0.1
#: Runs in a row in which torch.compile may compile (its own limit to recompiling is 8).
_MOST_COMPILATIONS = 8
#: Queued samples for the verdict on what limits the code, and seconds that they may take.
_QUEUED_SAMPLES, _QUEUED_TIME = 5, 0.5
#: Empty queued samples, whose time varies, and the seconds of the delay kernel for each.
_EMPTY_SAMPLES, _EMPTY_DELAY = 5, 5e-3


class _RunScope:
    """The context manager around one run of a loop: cache emptied, clocks, no garbage collection.

    Set `delay` for a queued run. The user has not asked for that one: an exception of the code is
    stored in `error` and not raised.
    """

    def __init__(self, flush: Flush | None) -> None:
        self._flush = flush
        self._stopwatch = Stopwatch()
        self.delay: Delay | None = None
        self.error: Exception | None = None
        #: The last run, if it was complete; and whether torch.compile compiled in it.
        self.run: Run | None = None
        self.compiled = False
        #: The devices that showed work in the first run, in which waits are signs too.
        self.shown: tuple[int, ...] | None = None

    def __enter__(self) -> None:
        self._compiled_before = compiled_frames()
        self._gc_was_on = gc.isenabled()
        gc.disable()
        try:
            if self._flush is not None:
                self._flush()
            self._stopwatch.start(self.delay)
        except BaseException:
            self._turn_gc_on()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: object
    ) -> bool:
        try:
            # A run that was cut short has no times: its GPU work is not waited for.
            self.run = self._stopwatch.stop() if kind is None else None
        finally:
            self._turn_gc_on()
        if self.shown is None and self.run is not None:
            self.shown = devices_used([self.run])
        self.compiled = compiled_frames() != self._compiled_before
        if self.delay is None or not isinstance(error, Exception):
            return False
        self.error = error
        return True

    def _turn_gc_on(self) -> None:
        if self._gc_was_on:
            gc.enable()

    def close(self) -> None:
        """End a run whose end an interrupt has cut short, and free the events."""
        self._stopwatch.release()

    def empty_samples(self, ordinal: int) -> dict[int, float]:
        """Return the most seconds that an empty queued sample takes, by the stream's handle."""
        found: dict[int, float] = {}
        for _ in range(_EMPTY_SAMPLES):
            self._stopwatch.start(Delay(ordinal, _EMPTY_DELAY))
            reading = self._stopwatch.stop().readings.get(ordinal)
            if reading is not None and reading.queued:
                for handle, seconds in reading.streams.items():
                    found[handle] = max(seconds, found.get(handle, 0.0))
        return found


class Benchmark:
    """Runs a loop as often as a plan asks for, and aggregates the runs.

    ``progress`` is called between repeats with the part that is done, 0 to 1.
    """

    def __init__(
        self, loop: Loop, plan: Plan, progress: Callable[[float], None] | None = None
    ) -> None:
        self.plan = plan
        self.loops = 1 if plan.cold else plan.loops
        self.warmup = 0
        self._loop = loop
        self._progress = progress or (lambda part: None)
        self._clocks = Clocks()
        self._host_speed = HostSpeed(wanted=plan.host_speed)
        self._flush = Flush() if plan.cold else None
        self._scope = _RunScope(self._flush)
        self._sampling: QueuedSampling | None = None
        self._stopped_by: StoppedBy | None = None
        #: The complete repeats so far.
        self.runs: list[Run] = []
        #: Wall seconds of the runs in which torch.compile compiled.
        self.compilations: list[float] = []
        self._compiled = CompilationRecord()

    def median(self) -> float | None:
        """Return the median of the repeats so far: GPU seconds per loop, or wall seconds."""
        if not self.runs or not self.loops:
            return None
        return statistics.median(gpu_or_wall(self.runs)) / self.loops

    async def run(self) -> None:
        """Run everything; awaits only if the loop does.

        Raises:
            DeviceError: a device's L2 cache cannot be emptied.
        """
        __tracebackhide__ = True
        gc_was_on = gc.isenabled()
        try:
            await self._run_all()
        finally:
            self._scope.close()
            # Also after an exception. The exception's traceback references this object, and with it
            # the flush's memory, as long as the notebook references the exception.
            try:
                if self._flush is not None:
                    self._flush.release()
            finally:
                if gc_was_on:
                    gc.enable()

    async def _run_all(self) -> None:
        __tracebackhide__ = True
        if self._flush is not None:
            self._flush()  # raises before the code runs, where it cannot be done
        await self._warm_up()
        loops = self.loops = self.loops or await self._choose_loops()
        self._host_speed.measure()
        if self.plan.open_end:
            await self._repeat_until_precise()
        else:
            for done in range(self.plan.repeats):
                self._progress(done / self.plan.repeats)
                await self._repeat()
        self._host_speed.measure()
        self._clocks.query(devices_used(self.runs), at_once=True)
        if self.plan.queued:
            # The time may have been over before there was a sample, or a reason for none.
            while self._can_queue(self.runs, loops) and not self._queued_samples():
                await self._run_queued()
        elif not self.plan.exact:
            await self._find_bottleneck()

    async def _run(self, loops: int) -> Run | None:
        """Run the loop once; None for a queued run that raised."""
        __tracebackhide__ = True
        await self._loop.run(loops, self._scope)
        return self._scope.run

    # --- before the repeats ---

    async def _warm_up(self) -> None:
        """Run the first loop by itself (it may compile, load, allocate), then as many as wanted."""
        __tracebackhide__ = True
        wanted = 1 if self.plan.warmup is None else self.plan.warmup
        if not wanted:
            return
        run = await self._warm(1)
        if self.plan.exact and wanted > 1:
            # The only runs to learn from that are not to be timed.
            while self.warmup < wanted and self._worth_queueing([run], 1):
                await self._run_queued()
                self.warmup += 1
        if wanted > self.warmup:
            run = await self._warm(wanted - self.warmup)
        if self.plan.open_end and self.plan.warmup is None:
            until = perf_counter() + _WARM_UP
            while self._scope.compiled or perf_counter() + run.wall < until:
                run = await self._warm(1)

    async def _warm(self, loops: int) -> Run:
        __tracebackhide__ = True
        run = await self._run(loops)
        assert run is not None
        self.warmup += loops
        self._note_compilation(run)
        return run

    def _note_compilation(self, run: Run) -> bool:
        """Return whether the run counts as compilation, and not as one of the code itself."""
        scope = self._scope
        scope.compiled = scope.compiled and len(self.compilations) < _MOST_COMPILATIONS
        if scope.compiled:
            self.compilations.append(run.wall)
        return scope.compiled

    async def _run_uncompiled(self, loops: int) -> Run:
        """Run until torch.compile has nothing more to compile, and return that run."""
        __tracebackhide__ = True
        while True:
            run = await self._run(loops)
            assert run is not None
            if not self._note_compilation(run):
                return run

    async def _choose_loops(self) -> int:
        """Return the smallest of 1, 2, 5, 10… loops that last as long as a repeat should."""
        __tracebackhide__ = True
        least = _MIN_SAMPLE_TIME if self.plan.open_end else MIN_REPEAT_TIME
        count = 1
        while True:
            wall = (await self._run_uncompiled(count)).wall
            alone = self.plan.open_end and count == 1 and wall >= _LONG_ENOUGH
            if alone or wall >= least or count >= MAX_LOOPS:
                return count
            wanted = count * min(least / max(wall, 1e-9), 100.0)
            count = min(round_up(max(wanted, count + 1)), MAX_LOOPS)

    # --- the repeats ---

    async def _repeat(self) -> None:
        __tracebackhide__ = True
        assert self.loops is not None
        run = await self._run_uncompiled(self.loops)
        self.runs.append(run)
        self._clocks.query(devices_used([run]))
        if self.plan.queued and self._can_queue(self.runs, self.loops):
            await self._run_queued()

    async def _repeat_until_precise(self) -> None:
        __tracebackhide__ = True
        precision = self.plan.precision or DEFAULT_PRECISION
        limit = self.plan.max_time or DEFAULT_MAX_TIME
        started, look = perf_counter(), stopping_rule.FIRST_LOOK
        while True:
            await self._repeat()
            elapsed = perf_counter() - started
            self._progress(min(elapsed / limit, 1.0))
            if len(self.runs) >= look and elapsed >= _LEAST_TIME:
                look = stopping_rule.next_look(len(self.runs))
                if self._is_precise(precision):
                    self._stopped_by = "precision"
                    return
            if elapsed >= limit and len(self.runs) >= self.plan.least:
                self._stopped_by = "max-time"
                return

    def _is_precise(self, precision: float) -> bool:
        rows = [gpu_or_wall(self.runs)]
        if self.plan.queued and self._queued_samples():
            rows.append(self._queued_samples())
        widths = [stopping_rule.half_width(row) for row in rows]
        return all(width is not None and width <= precision for width in widths)

    # --- queued samples ---

    def _queued_samples(self) -> Sequence[float]:
        return () if self._sampling is None else self._sampling.samples

    def _can_queue(self, runs: Sequence[Run], loops: int) -> bool:
        """Return whether to take a queued sample, planned by ``runs`` of ``loops`` loops each."""
        if self._sampling is None:
            self._sampling = self._new_sampling(runs, loops)
        return self._sampling is not None and self._sampling.delay is not None

    def _worth_queueing(self, runs: Sequence[Run], loops: int) -> bool:
        """Return whether one more queued sample helps to find what limits the code."""
        if not self._can_queue(runs, loops):
            return False
        assert self._sampling is not None
        return len(self._sampling.samples) < _QUEUED_SAMPLES and not self._sampling.no_gpu_work

    def _new_sampling(self, runs: Sequence[Run], loops: int) -> QueuedSampling | None:
        """Return how to take queued samples; None where there is no GPU time."""
        last = runs[-1]
        if last.note is not None or not last.readings or last.backend != "cuda":
            return None
        # Code that has finished before the events are recorded may have used the current device.
        devices = devices_used(runs) or self._scope.shown or (torch_cuda.current_device(),)
        ordinal = devices[0]
        if ordinal is None or ordinal not in last.readings:
            return None
        empty = self._scope.empty_samples(ordinal)
        sampling = QueuedSampling(
            ordinal,
            loop_time=min(run.wall for run in runs) / loops,
            host_time=max(run.host for run in runs[-9:]) / loops,
            loops=loops,
            empty_time=empty.get(torch_cuda.current_stream(ordinal).cuda_stream, 0.0),
            empty=empty,
        )
        if len(devices) > 1:
            sampling.stop("the code uses several GPUs, which one delay kernel cannot hold")
        if any(run.readings[ordinal].foreign for run in runs if ordinal in run.readings):
            sampling.stop("the code uses streams that are not torch's, which cannot be delayed")
        return sampling

    async def _run_queued(self) -> None:
        """Take a queued sample: run behind a delay kernel."""
        __tracebackhide__ = True
        sampling, scope = self._sampling, self._scope
        assert sampling is not None
        assert sampling.delay is not None
        scope.delay = sampling.delay
        try:
            run = await self._run(sampling.loops)
        finally:
            scope.delay = None
        if scope.error is not None:
            name, scope.error = type(scope.error).__name__, None
            sampling.stop(f"the code raised {name} when it was run once more")
            return
        reading = None if run is None else run.readings.get(sampling.ordinal)
        if reading is None:
            sampling.add(None, queued=False)
        else:
            sampling.add(reading.seconds, queued=reading.queued, holds_all=reading.holds_all)

    async def _find_bottleneck(self) -> None:
        """Take a few queued samples, if the runs themselves do not show what limits the code."""
        __tracebackhide__ = True
        assert self.loops is not None
        if bottleneck.gpu_outlasts_host(gpu_or_wall(self.runs), [run.host for run in self.runs]):
            return
        until = perf_counter() + _QUEUED_TIME
        while self._worth_queueing(self.runs, self.loops):
            await self._run_queued()
            if self._sampling is not None and perf_counter() > until:
                self._sampling.time_is_over()

    # --- the result ---

    def result(self, compile_time: float = 0.0, *, partial: bool = False) -> CudaTiming | None:
        """Aggregate the complete repeats into a result; None if there is none."""
        if not self.runs or self.loops is None:
            return None
        values = [value / self.loops for value in gpu_or_wall(self.runs)]
        quality = Quality(
            precision=stopping_rule.half_width(values),
            stopped_by=self._stopped_by,
            drift=stopping_rule.drift(values),
            outliers=stopping_rule.outliers(values),
            throttled=dict(sorted(self._clocks.reasons.items())),
            flushed=dict(self._flush.sizes) if self._flush else None,
            asked=None if self.plan.open_end else self.plan.repeats,
        )
        timing = summarize(
            self.runs,
            loops=self.loops,
            warmup=self.warmup,
            compile_time=compile_time,
            partial=partial,
            sampling=self._sampling,
            quality=quality,
            compilations=self.compilations,
            compiled=self._compiled,
            shown=self._scope.shown or (),
            host_speed=self._host_speed.sample,
        )
        return without_unseen_work(timing)
