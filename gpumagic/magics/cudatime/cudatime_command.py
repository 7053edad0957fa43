"""``%cudatime`` and ``%%cudatime``: GPU, wall and CPU time of code.

What can be typed; which function runs it; and the code's single run. Completion reads the forms at
a key press: what measures is imported when code runs.
"""

from __future__ import annotations

import argparse
import re
from argparse import ArgumentTypeError
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from gpumagic.cells.compile import CompiledCell, compile_cell
from gpumagic.errors import SpecError
from gpumagic.magics.argument_types import count, duration, duration_or_zero
from gpumagic.magics.forms import BASELINE, Parser
from gpumagic.magics.parsing import Grammar, MagicLine

if TYPE_CHECKING:
    from gpumagic.magics.delivery import Delivery
    from gpumagic.magics.shell_state import ShellState
    from gpumagic.results.timing import CudaTiming
    from gpumagic.timing.event_timer import Started
    from gpumagic.timing.lines.line_profiler import LineProfiler

# --- what can be typed ----------------------------------------------------------------------------

#: Each of these options alone makes the run a repeated one.
REPEATING = {"-n", "-r", "-w", "--repeat", "-s", "--max-time", "--cold", "--on", "--energy"}
#: Options that run the code once more.
AGAIN = {"--kernels", "--trace", "--flops"}
#: Options that have no meaning for the engines of a cluster.
_ONLY_HERE = ("--lines", "--name", "--kernels", "--trace", "--on", "--flops", "--energy", *BASELINE)
#: Seconds from which a cell without a sign of GPU work gets a line by default.
ABOVE = 0.1


@cache
def grammar() -> Grammar:
    """Return the forms of ``%cudatime``: a statement, or a verb."""
    on = Parser(
        "%cudatime on",
        "a line with the times after every cell with a sign of GPU work, or over 0.1 s",
    )
    above = "also after cells without GPU work that take longer"
    add = on.section("lines after cells")
    add("--above TIME", above, duration_or_zero, default=ABOVE)
    return Grammar(
        "%cudatime",
        _run(),
        on,
        Parser("%cudatime off", "no more lines after cells"),
        Parser("%cudatime log", "the times of the cells until now, and their sum"),
        Parser("%cudatime compare [NAMES]", "the results of --name side by side"),
        Parser("%cudatime forget [NAMES]", "these results, or all, have no names any more"),
        meant={
            **dict.fromkeys(("start", "enable", "watch"), "on"),
            **dict.fromkeys(("stop", "disable"), "off"),
            **dict.fromkeys(("status", "show", "report", "history"), "log"),
            **dict.fromkeys(("clear", "reset", "delete", "remove"), "forget"),
        },
        beside="on this line: -r 5 repeats, -s SETUP, --lines -f FUNCTION",
    )


def _run() -> Parser:
    """Return the form of a line that runs code."""
    form = Parser("%cudatime STATEMENT")
    add = form.section("repeated runs: the code is a function's body, and assigns no variables")
    add("-n N", "loops in a repeat", count, dest="loops")
    add("-r R", "repeats", count, dest="repeats")
    add("-w W", "warm-up loops (0: run no others)", partial(count, least=0), dest="warmup")
    add("-s SETUP", "code before each repeat, not timed", dest="setup")
    add("--repeat", "until the median is precise to 1 %")
    add("--max-time T", "but no longer than this (default: 3s)", duration)
    add("--cold", "with an empty L2 cache before each loop")
    add("--on DEVICES", "on each, and compare: cpu,cuda:0", _devices)
    add("--energy", "joules per loop, and mean watts; runs it longer")
    form.add_lines("GPU and host time of each line, and its waits")
    form.apart("--lines", sorted(REPEATING))
    form.apart("--on", ("--kernels", "--trace", "--nvtx", "--flops", "--energy", *BASELINE))
    add = form.section("where the time goes: all but --nvtx run the code once more")
    add("--kernels", "the GPU kernels by time, from torch's profiler")
    add("--trace FILE", "its trace, for ui.perfetto.dev (.json, .json.gz)")
    add("--nvtx NAME", "an NVTX range around the code, for Nsight")
    add("--flops", "floating-point operations, and per second")
    form.section("comparing")("--name NAME", "name the result, for compare and --against", _name)
    form.add_baseline()
    form.add_targets(_ONLY_HERE)
    return form


def _devices(text: str) -> list[str]:
    """Return ``["cpu", "cuda:0"]`` from ``cpu,cuda``."""
    names = [f"{word}:0" if word == "cuda" else word for word in text.replace(",", " ").split()]
    if not names or not all(re.fullmatch(r"cpu|cuda:\d{1,3}", name) for name in names):
        raise ArgumentTypeError(f"{text!r} is no list of devices; write cpu,cuda:0")
    return [*dict.fromkeys(names)]


def _name(word: str) -> str:
    if not word or "," in word:
        raise ArgumentTypeError(f"{word!r} is not a name; it must not hold a comma")
    return word


# --- what runs it ---------------------------------------------------------------------------------


def run(
    magics: ShellState, line: MagicLine, cell: str | None, local_ns: dict[str, Any] | None
) -> Any:
    """Run the magic; for code that awaits, return a coroutine that does.

    Raises:
        SpecError: the line does not fit.
    """
    options = line.options
    if line.verb:
        from gpumagic.magics.cudatime import cudatime_verbs

        return cudatime_verbs.run(line.verb, magics, options)
    if cell is None and not line.code:
        raise SpecError("%cudatime: no statement to time. Help: %cudatime?")
    if options.cluster:
        from gpumagic.magics import cluster

        return cluster.run_cell(magics, "cudatime", line, cell)
    source = line.code if cell is None else cell
    # The magic's own line, by which tracebacks count a cell's lines.
    header = None if cell is None else f"%%cudatime {line.written}"
    _wait_for_earlier_work(magics, options)
    if REPEATING.isdisjoint(line.given):
        compiled = compile_cell(magics.shell, source, header=header, local_ns=local_ns)
        compiled.check_runs_again(*AGAIN & line.given.keys())
        return _run_once(magics, options, compiled)
    from gpumagic.magics.cudatime import repeated

    return repeated.run(magics, options, source, header, local_ns)


def _wait_for_earlier_work(magics: ShellState, options: argparse.Namespace) -> None:
    """Wait for the GPU's earlier work; where that is interrupted, the user's code has not run."""
    from gpumagic.magics.delivery import say
    from gpumagic.timing.event_timer import wait_for_earlier_work

    try:
        wait_for_earlier_work()
    except KeyboardInterrupt as interrupt:
        if not options.quiet:
            waited = "interrupted while waiting for earlier GPU work"
            say(magics.shell, f"%cudatime: {waited}; nothing was run")
        raise interrupt.with_traceback(None) from None


def _run_once(magics: ShellState, options: argparse.Namespace, cell: CompiledCell) -> Any:
    """Run and time a cell, and return what the magic returns; a coroutine if the cell awaits.

    Raises:
        SpecError: a file cannot be read or written, or there is no such function.
    """
    from gpumagic.magics.cudatime.further_runs import FurtherRuns, TimingDelivery
    from gpumagic.timing.profiler import nvtx_range

    delivery = TimingDelivery(magics, options, repeats=1)
    further = FurtherRuns(options)
    single = _SingleRun(delivery, cell)

    @contextmanager
    def timed() -> Iterator[None]:
        try:
            # `close`: an interrupt may come before the end of the run has begun.
            with nvtx_range(options.nvtx), closing(single), single:
                yield
        except BaseException:
            delivery.deliver(single.result)
            raise

    def finish(value: object) -> Any:
        further.result = single.result
        try:
            value = further.run(cell.run, value)
        finally:
            delivery.deliver(further.result)
        return delivery.finish(value, further.result)

    return cell.run_within(timed(), finish)


class _SingleRun(AbstractContextManager[None]):
    """Times a block; ``result`` is there at its end, also after an exception."""

    def __init__(self, delivery: Delivery, cell: CompiledCell) -> None:
        #: None until then, and where gpumagic has failed.
        self.result: CudaTiming | None = None
        self._shell, self._options = delivery.shell, delivery.options
        self._compile_time = cell.compile_time
        self._lines: LineProfiler | None = None
        if self._options.lines:
            from gpumagic.cells.line_sources import selected_sources
            from gpumagic.timing.lines.line_profiler import LineProfiler

            self._lines = LineProfiler(selected_sources(cell, self._options.functions))
        self._started: Started | None = None

    def __enter__(self) -> None:
        from gpumagic.timing import event_timer, summary

        self._frames_before = summary.compiled_frames()
        if self._lines is not None:
            self._lines.prepare()
        self._started = event_timer.start()
        if self._lines is not None:
            self._lines.start()

    def close(self) -> None:
        """End the tracing, also where an interrupt came before that; and free the events."""
        self._started = None
        if self._lines is not None:
            self._lines.close()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        from gpumagic.magics.delivery import saying_failures
        from gpumagic.timing import event_timer, summary

        assert self._started is not None
        interrupt: KeyboardInterrupt | None = None
        with saying_failures(self._shell):
            if self._lines is not None:
                self._lines.stop(failed=kind is not None)
            stopped = event_timer.stop(self._started)
            ended = () if kind is None else (summary.STOPPED_EARLY,)
            times, interrupt = event_timer.read_or_give_up(stopped)
            fields: dict[str, Any] = {
                "compile_time": self._compile_time,
                "partial": kind is not None or interrupt is not None,
                "notes": summary.counted(summary.compiled_frames() - self._frames_before) + ended,
            }
            if self._lines is not None:  # they may show work that left no sign outside
                self.result = self._lines.result(times, **fields)
            else:
                self.result = summary.summarize([times], **fields)
        if interrupt is not None:
            raise interrupt.with_traceback(None)  # the frames are gpumagic's, not the cell's
