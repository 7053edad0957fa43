"""``%%cudatime --lines``: the figures of known kernels, and what it costs beside other tracers."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from math import fsum
from pathlib import Path
from statistics import median
from typing import Any

from tests.benchmarks.process import reason
from tests.benchmarks.row import Row
from tests.support.kernels import python_environment
from tests.virtual_gpu import Scenario, environment

#: Passes of a loop with two lines that do next to nothing, and of those with a line of 1 ms.
SHORT, LONG = 20_000, 100
#: And of a loop that is so short that every line of it is marked.
MARKED = 120
ROUNDS = 9
#: What the tracer may cost on lines of a millisecond.
LIMIT = 1.02

#: The GPU has work all the time, so that the host's pace does not count.
_CELL = """\
for i in range(100):
    sleep(1e-3)
    sleep(20e-6)
sleep(20e-3)
then(30e-3, side, current)
then(10e-3, other, side)
"""
#: By line: what it does, and for how long it keeps the GPU busy.
_KNOWN = {
    3: ("100 times 1 ms", 100e-3),
    4: ("100 times 20 µs", 2e-3),
    5: ("20 ms", 20e-3),
    6: ("30 ms on a side stream", 30e-3),
    7: ("10 ms on another device", 10e-3),
}


def rows() -> Iterable[Row]:
    """The rows of the lines. Needs two GPUs, real or virtual."""
    yield from _known()
    yield from _cost()


# --- known kernels ------------------------------------------------------------------------------


def _known() -> Iterator[Row]:
    import torch

    from tests.support.shells import shell
    from tests.virtual_gpu import SLEEP_CYCLES_PER_SECOND

    def sleep(seconds: float) -> None:
        torch.cuda._sleep(int(seconds * SLEEP_CYCLES_PER_SECOND))

    def then(seconds: float, stream: Any, before: Any) -> None:
        stream.wait_stream(before)
        with torch.cuda.stream(stream):
            sleep(seconds)

    for ordinal in (0, 1):
        torch.empty(1, device=f"cuda:{ordinal}")
    streams = {
        "current": torch.cuda.current_stream(),
        "side": torch.cuda.Stream(),
        "other": torch.cuda.Stream(1),
    }
    with shell() as ip:
        ip.user_ns.update(sleep=sleep, then=then, **streams)
        ip.run_cell(f"%%cudatime --lines -q -v timing\n{_CELL}").raise_error()
        timing = ip.user_ns["timing"]
    lines = {line.line: line for line in timing.lines}
    for number, (name, true) in _KNOWN.items():
        yield Row.within(
            f"%%cudatime --lines, {name}",
            lines[number].gpu,
            true,
            0.95 if "20 µs" in name else 0.98,
            1.05 if "20 µs" in name else 1.02,
            note="true duration",
        )
    yield Row.within(
        "%%cudatime --lines, the sum of the lines",
        fsum(line.gpu for line in timing.lines),
        timing.gpu.median,
        0.98,
        1.02,
        note="the GPU time of the cell",
    )


# --- what the tracers cost ----------------------------------------------------------------------

#: Run by itself, so that Scalene can run it too. It takes the ways to trace, and a file to write.
_PROGRAM = """\
import json, sys
from tests.benchmarks.bench_lines import measure
with open(sys.argv[-1], "w") as file:
    json.dump(measure(sys.argv[1:-1]), file)
"""
_SCALENE = ("-m", "scalene", "run", "--cpu-only", "-o", "profile.json")


def _cost() -> Iterator[Row]:
    """CPU seconds of the thread, which a busy machine does not lengthen as it does the clock's."""
    found = _measured([], ["none", "ours", "line_profiler"])
    why: dict[str, str] = {}
    if "line_profiler" not in found:
        why["line_profiler"] = "No module named 'line_profiler'"
    try:
        # Beside the others, in the same minute; it samples the whole process.
        found["scalene"] = _measured(_SCALENE, ["none"])["none"]
    except RuntimeError as error:
        why["scalene"] = reason(error)
    plain = found["none"]
    note = f"the same loop without; CPU time, the best of {ROUNDS} in turns"
    of_c = f"the same loop without; CPU time by the lines' own, the median of {ROUNDS} in turns"
    yield Row.at_most(f"--lines, {_LOOPS[0]}", found["ours"][0], plain[0], LIMIT, note=of_c)
    for i in (1, 2):
        yield Row.shown(f"--lines, {_LOOPS[i]}", found["ours"][i], plain[i], note=note)
    two = _measured([], [_TWO, "none", "ours"])["ours"]
    for times, devices in ((found["ours"], ""), (two, ", two devices in use")):
        yield Row.at_most(
            f"--lines, a marked line and the head of its loop{devices}",
            (times[3] - plain[3]) / MARKED,
            plain[0] / LONG,
            LIMIT - 1.0,
            note=f"a line of 1 ms; CPU time, the best of {ROUNDS}",
        )
    for peer, title in (
        ("line_profiler", "line_profiler, which knows no GPU"),
        ("scalene", "Scalene, which samples the CPU"),
    ):
        if peer in why:
            yield Row.missing(title, why[peer])
            continue
        for name, taken, without in zip(_LOOPS[:3], found[peer], plain, strict=False):
            yield Row.shown(f"{title}: {name}", taken, without, note=note)
    if "line_profiler" in found:
        ours, theirs = (
            (found[way][2] - plain[2]) / (2 * SHORT) for way in ("ours", "line_profiler")
        )
        yield Row.shown("--lines, what it costs a line", ours, theirs, note="line_profiler")


def _measured(before: Sequence[str], ways: Sequence[str]) -> dict[str, list[float]]:
    """Return what `measure` finds in a process of its own, run by ``before``.

    Raises:
        RuntimeError: it failed.
    """
    with tempfile.TemporaryDirectory() as folder:
        program, out = Path(folder) / "program.py", Path(folder) / "out.json"
        program.write_text(_PROGRAM)
        done = subprocess.run(
            [sys.executable, *before, str(program), *(["---"] if before else []), *ways, str(out)],
            env=python_environment(environment(Scenario(devices=2))),
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        if not out.exists():
            raise RuntimeError(f"{ways} failed:\n{done.stdout}\n{done.stderr}")
        times: dict[str, list[float]] = json.loads(out.read_text())
        return times


#: The loops that are measured. A trace function slows down all Python code, before Python 3.12.
_LOOPS = ("lines of 1 ms in C", "lines of 1 ms in Python", "lines of nothing", "marked lines")
#: Among the ways: all of them with a second device in use.
_TWO = "two devices"
#: What takes about a millisecond: so many bytes to hash, so many additions.
_BYTES, _ADDITIONS = bytes(1_700_000), 40_000
#: What takes so long to add up that something could have been launched: about 20 µs.
_FEW = range(1_000)


#: CPU seconds that each line in C took itself.
_own: list[float] = []


def _hash() -> None:
    begun = time.thread_time()
    hashlib.sha256(_BYTES)
    _own.append(time.thread_time() - begun)


def _add() -> None:
    x = 0
    for i in range(_ADDITIONS):
        x += i


def _in_c() -> float:
    """Return the CPU seconds of the loop, if each line took a millisecond itself.

    By the lines' own time in the same loop: a CPU's clock changes by more than tracing takes.
    """
    _own.clear()
    begun = time.thread_time()
    for _ in range(LONG // 4):
        _hash()
        _hash()
        _hash()
        _hash()
    return (time.thread_time() - begun) * LONG * 1e-3 / fsum(_own)


def _in_python() -> float:
    begun = time.thread_time()
    for _ in range(LONG // 4):
        _add()
        _add()
        _add()
        _add()
    return time.thread_time() - begun


def _short() -> float:
    x = 0
    begun = time.thread_time()
    for i in range(SHORT):
        x = i
    del x
    return time.thread_time() - begun


def _marked() -> float:
    begun = time.thread_time()
    for _ in range(MARKED):
        sum(_FEW)
    return time.thread_time() - begun


def measure(ways: Sequence[str]) -> dict[str, list[float]]:
    """Return the CPU seconds of each loop, by way to trace.

    The least of some rounds; of the lines in C the median. Without a way whose package is not
    installed.
    """
    import torch

    torch.ones(1, device="cuda")
    if _TWO in ways:
        torch.ones(1, device="cuda:1")
    found = {
        way: [list[float]() for _ in _LOOPS]
        for way in ways
        if way != _TWO and (way != "line_profiler" or _has_peer())
    }
    for _ in range(ROUNDS):
        for way, times in found.items():
            for i, loop in enumerate((_in_c, _in_python, _short, _marked)):
                times[i].append(_traced(way, loop))
    return {way: [median(of_c), *map(min, others)] for way, (of_c, *others) in found.items()}


def _has_peer() -> bool:
    return importlib.util.find_spec("line_profiler") is not None


def _traced(way: str, loop: Callable[[], float]) -> float:
    took: list[float] = []

    def run() -> None:
        took.append(loop())

    if way == "ours":
        from tests.support.line_cells import measured

        assert measured("run()", (loop,), run=run).lines is not None
    elif way == "line_profiler":
        import line_profiler

        line_profiler.LineProfiler(loop).runcall(run)
    else:
        run()
    return took[0]
