"""The same code many times: warming up, how many loops, how many repeats, and queued samples."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from time import perf_counter

from gpumagic.cells.timeit_loop import Loop
from gpumagic.cuda import torch_cuda
from gpumagic.results import CudaTiming
from gpumagic.results.quality import Quality, StoppedBy
from gpumagic.timing import bottleneck, stopping_rule
from gpumagic.timing.conditions import Clocks, Flush, compilations
from gpumagic.timing.launch_overhead import Hold, Probe
from gpumagic.timing.plan import DEFAULT_MAX_TIME, DEFAULT_PRECISION, Plan
from gpumagic.timing.run import Lap, Stopwatch, summarize, timed, working

#: Seconds that a repeat lasts at least when the number of loops is chosen here: as ``%timeit``'s
#: for a given number of repeats, else enough for the marks not to count.
MIN_REPEAT_TIME, _MIN_SAMPLE_TIME = 0.2, 5e-3
#: A loop of so many seconds is a sample by itself.
_LONG_ENOUGH = 1e-3
MAX_LOOPS = 10_000_000
#: Seconds of warm-up, and of measuring at least: a GPU that was idle needs a while to reach its
#: clock (triton's ``do_bench`` has 25 ms and 100 ms).
_WARM_UP, _LEAST_TIME = 50e-3, 0.1
#: Runs in a row in which torch.compile may compile (its own limit to recompiling is 8).
_MOST_COMPILATIONS = 8
#: Queued samples for the verdict on what limits the code, and seconds that they may take.
_PROBES, _PROBE_TIME = 5, 0.5
#: Seconds that a device is held for a sample of nothing.
_EMPTY_HOLD = 5e-3
#: So many queued samples of nothing: what marks take is not the same each time.
_EMPTY_SAMPLES = 5


class Repetition:
    """Warm-up, the number of loops if it is open, the repeats, and queued samples.

    Iterate over it and run the loop as often as each item says, inside the repetition's scope (the
    garbage collector is off in it, as in ``timeit``)::

        for count in repetition:
            loop(count, repetition)

    ``progress`` is called between repeats with the part that is done, 0 to 1.

    Raises:
        SpecError: see `Plan`.
    """

    def __init__(
        self,
        loops: int | None = None,
        repeat: int | None = None,
        warmup: int | None = None,
        progress: Callable[[float], None] | None = None,
        *,
        precision: float | None = None,
        max_time: float | None = None,
        queued: bool = False,
        cold: bool = False,
    ) -> None:
        self.plan = Plan(loops, repeat, warmup, precision, max_time, queued, cold)
        self.loops = 1 if cold else loops
        self.warmup = 0
        self._progress = progress or (lambda part: None)
        self._stopwatch = Stopwatch()
        self._clocks = Clocks()
        self._flush = Flush() if cold else None
        self._probe: Probe | None = None
        self._hold: Hold | None = None
        self._stopped_by: StoppedBy | None = None
        #: The complete repeats so far.
        self.laps: list[Lap] = []
        #: Wall seconds of the runs in which torch.compile compiled.
        self.compilations: list[float] = []
        self._last: Lap | None = None
        self._compiled = False

    def __iter__(self) -> Iterator[int]:
        if self._flush is not None:
            self._flush()  # what cannot be done is said before the code runs
        yield from self._warm_up()
        if self.loops is None:
            yield from self._choose_loops()
        if self.plan.open_end:
            yield from self._until_enough()
        else:
            for done in range(self.plan.repeats):
                self._progress(done / self.plan.repeats)
                yield from self._one_repeat()
        self._clocks.look(working(self.laps), at_once=True)
        if self.plan.queued:
            while self._can_be_held(self.laps, self.loops or 1) and not self._samples():
                yield from self._one_queued()  # the time was over before it was clear why not
        elif not self.plan.exact:
            yield from self._find_bound()

    def _lap(self) -> Lap:
        assert self._last is not None
        return self._last

    # --- before the repeats ---

    def _warm_up(self) -> Iterator[int]:
        """The first loop by itself: it may compile, load, allocate; then as many as are wanted."""
        wanted = 1 if self.plan.warmup is None else self.plan.warmup
        if wanted:
            yield from self._warm(1)
        if self.plan.exact and wanted > 1:
            # The only runs to learn from that are not to be timed.
            while self.warmup < wanted and self._worth_probing([self._lap()], 1):
                yield from self._one_queued()
                self.warmup += 1
        if wanted > self.warmup:
            yield from self._warm(wanted - self.warmup)
        if self.plan.open_end and self.plan.warmup is None:
            until = perf_counter() + _WARM_UP
            while self._compiled or perf_counter() + self._lap().wall < until:
                yield from self._warm(1)

    def _warm(self, count: int) -> Iterator[int]:
        yield count
        self.warmup += count
        self._note_compilation()

    def _note_compilation(self) -> bool:
        """Whether the last run counts as compilation, and not as one of the code itself."""
        self._compiled = self._compiled and len(self.compilations) < _MOST_COMPILATIONS
        if self._compiled:
            self.compilations.append(self._lap().wall)
        return self._compiled

    def _choose_loops(self) -> Iterator[int]:
        """The smallest of 1, 2, 5, 10… loops that last as long as a repeat should."""
        least = _MIN_SAMPLE_TIME if self.plan.open_end else MIN_REPEAT_TIME
        count = 1
        while True:
            yield count
            if self._note_compilation():
                continue
            wall = self._lap().wall
            alone = self.plan.open_end and count == 1 and wall >= _LONG_ENOUGH
            if alone or wall >= least or count >= MAX_LOOPS:
                break
            wanted = count * min(least / max(wall, 1e-9), 100.0)
            count = min(_round_up(max(wanted, count + 1)), MAX_LOOPS)
        self.loops = count

    # --- the repeats ---

    def _one_repeat(self) -> Iterator[int]:
        assert self.loops is not None
        while True:
            yield self.loops
            if not self._note_compilation():
                break
        self.laps.append(self._lap())
        self._clocks.look(working(self.laps[-1:]))
        if self.plan.queued and self._can_be_held(self.laps, self.loops):
            yield from self._one_queued()

    def _until_enough(self) -> Iterator[int]:
        precision = self.plan.precision or DEFAULT_PRECISION
        limit = self.plan.max_time or DEFAULT_MAX_TIME
        started, look = perf_counter(), stopping_rule.FIRST_LOOK
        while True:
            yield from self._one_repeat()
            passed = perf_counter() - started
            self._progress(min(passed / limit, 1.0))
            if len(self.laps) >= look and passed >= _LEAST_TIME:
                look = stopping_rule.next_look(len(self.laps))
                if self._precise(precision):
                    self._stopped_by = "precision"
                    return
            if passed >= limit:
                self._stopped_by = "max-time"
                return

    def _precise(self, precision: float) -> bool:
        rows = [timed(self.laps)]
        if self.plan.queued and self._samples():
            rows.append(self._samples())
        widths = [stopping_rule.half_width(row) for row in rows]
        return all(width is not None and width <= precision for width in widths)

    # --- queued samples ---

    def _can_be_held(self, laps: Sequence[Lap], loops: int) -> bool:
        """Whether there is, or may be, a queued sample; ``laps`` are runs of ``loops`` loops."""
        if self._probe is None:
            self._probe = self._new_probe(laps, loops)
        return self._probe is not None and self._probe.hold is not None

    def _new_probe(self, laps: Sequence[Lap], loops: int) -> Probe | None:
        """How to take queued samples; None where there is no GPU time to begin with."""
        if laps[-1].notes or not laps[-1].readings or laps[-1].backend != "cuda":
            return None
        # Code that is done before its marks are set may have used the current device all the same.
        devices = working(laps) or (torch_cuda.current_device(),)
        ordinal = devices[0]
        if ordinal is None or ordinal not in laps[-1].readings:
            return None
        nothing = self._nothing(ordinal)
        probe = Probe(
            ordinal,
            loop_time=min(lap.wall for lap in laps) / loops,
            host_time=max(lap.host for lap in laps[-9:]) / loops,
            loops=loops,
            marks=nothing.get(torch_cuda.current_stream(ordinal).cuda_stream, 0.0),
            nothing=nothing,
        )
        if len(devices) > 1:
            probe.refuse("the code uses several GPUs, which cannot be held as one")
        if any(lap.readings[ordinal].foreign for lap in laps if ordinal in lap.readings):
            probe.refuse("the code uses streams that are not torch's, which cannot be held")
        return probe

    def _nothing(self, ordinal: int) -> dict[int, float]:
        """Seconds that queued samples of nothing take at most, by the stream's handle."""
        found: dict[int, float] = {}
        for _ in range(_EMPTY_SAMPLES):
            self._stopwatch.start(Hold(ordinal, _EMPTY_HOLD))
            reading = self._stopwatch.stop().readings.get(ordinal)
            if reading is not None and reading.held:
                for handle, seconds in reading.marks.items():
                    found[handle] = max(seconds, found.get(handle, 0.0))
        return found

    def _one_queued(self) -> Iterator[int]:
        """A sample behind a hold."""
        probe = self._probe
        assert probe is not None
        self._hold = probe.hold
        assert self._hold is not None
        try:
            yield probe.loops
            reading = self._lap().readings.get(self._hold.ordinal) if probe.hold else None
        finally:
            self._hold = None
        if probe.hold is not None:  # else the code raised
            seconds = None if reading is None else reading.seconds
            probe.take(seconds, held=reading is not None and reading.held)

    def _worth_probing(self, laps: Sequence[Lap], loops: int) -> bool:
        """Whether one more queued sample helps to tell what limits the code."""
        if not self._can_be_held(laps, loops):
            return False
        assert self._probe is not None
        return len(self._samples()) < _PROBES and not self._probe.shows_nothing

    def _samples(self) -> Sequence[float]:
        return () if self._probe is None else self._probe.samples

    def _find_bound(self) -> Iterator[int]:
        """A few queued samples, if the runs themselves do not show what limits the code."""
        assert self.loops is not None
        if bottleneck.outlives(timed(self.laps), [lap.host for lap in self.laps]):
            return
        until = perf_counter() + _PROBE_TIME
        while self._worth_probing(self.laps, self.loops):
            yield from self._one_queued()
            if self._probe is not None and perf_counter() > until:
                self._probe.stop()

    # --- the scope of a run ---

    def __enter__(self) -> None:
        self._before = compilations()
        self._gc_was_on = gc.isenabled()
        gc.disable()
        try:
            if self._flush is not None:
                self._flush()
            self._stopwatch.start(self._hold)
        except BaseException:
            self._turn_gc_on()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: object
    ) -> bool:
        try:
            # A stretch that was cut short tells nothing, and nobody is to wait for its GPU work.
            self._last = self._stopwatch.stop() if kind is None else None
        finally:
            self._turn_gc_on()
        self._compiled = compilations() != self._before
        if self._hold is None or not isinstance(error, Exception) or self._probe is None:
            return False
        # Nobody asked for this run: what it raises is no affair of the user's.
        self._probe.refuse(f"the code raised {type(error).__name__} when it was run once more")
        return True

    def _turn_gc_on(self) -> None:
        if self._gc_was_on:
            gc.enable()

    def release(self) -> None:
        """Let go of the GPU memory that was taken to measure."""
        if self._flush is not None:
            self._flush.release()

    # --- the result ---

    def result(self, compile_time: float = 0.0, *, partial: bool = False) -> CudaTiming | None:
        """What the complete repeats amount to; None if there is none."""
        if not self.laps or self.loops is None:
            return None
        values = [value / self.loops for value in timed(self.laps)]
        quality = Quality(
            precision=stopping_rule.half_width(values),
            stopped_by=self._stopped_by,
            drift=stopping_rule.drift(values),
            outliers=stopping_rule.outliers(values),
            throttled=dict(sorted(self._clocks.reasons.items())),
            flushed=dict(self._flush.sizes) if self._flush else None,
            asked=None if self.plan.open_end else self.plan.repeats,
        )
        return summarize(
            self.laps,
            loops=self.loops,
            warmup=self.warmup,
            compile_time=compile_time,
            partial=partial,
            probe=self._probe,
            quality=quality,
            compilations=self.compilations,
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
    gc_was_on = gc.isenabled()
    try:
        for count in repetition:
            loop(count, repetition)
    finally:
        _leave(repetition, gc_was_on)


async def run_async(loop: Loop, repetition: Repetition) -> None:
    """`run` for a loop that awaits."""
    __tracebackhide__ = True
    gc_was_on = gc.isenabled()
    try:
        for count in repetition:
            await loop(count, repetition)
    finally:
        _leave(repetition, gc_was_on)


def _leave(repetition: Repetition, gc_was_on: bool) -> None:
    """Leave nothing behind, wherever an interrupt has struck.

    The exception's traceback holds the repetition as long as the notebook holds the exception.
    """
    try:
        repetition.release()
    finally:
        if gc_was_on:
            gc.enable()
