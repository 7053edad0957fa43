"""``%%cudatime --lines``: the figures of known kernels, and what it costs beside other tracers."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from math import fsum
from pathlib import Path
from statistics import median
from typing import Any

from tests.benchmarks.process import reason
from tests.benchmarks.row import Row
from tests.support.kernels import python_environment
from tests.virtual_gpu import Scenario, environment

#: Passes of a loop with two lines that do next to nothing, and of one with a line of a millisecond.
SHORT, LONG = 50_000, 300
ROUNDS = 3
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

#: Run by itself, so that Scalene can run it too. It takes the way to trace, and a file to write.
_SCRIPT = """\
import json, sys
from tests.benchmarks.bench_lines import measure
with open(sys.argv[2], "w") as file:
    json.dump(measure(sys.argv[1]), file)
"""
_PEERS = ("line_profiler", "scalene")


def _cost() -> Iterator[Row]:
    found: dict[str, list[list[float]]] = {"none": [], "ours": [], **{peer: [] for peer in _PEERS}}
    missing: dict[str, str] = {}
    for _ in range(ROUNDS):
        for way, times in found.items():
            if way in missing:
                continue
            try:
                times.append(_measured(way))
            except RuntimeError as error:
                if way not in _PEERS:
                    raise
                missing[way] = reason(error)
    times = {
        way: [median(loops) for loops in zip(*all_, strict=True)]
        for way, all_ in found.items()
        if all_
    }
    long, short = times["none"]
    note = "the same loop without, each in processes of its own, in turns"
    yield Row.at_most("--lines, 300 lines of 1 ms", times["ours"][0], long, LIMIT, note=note)
    yield Row.shown("--lines, 100,000 lines of nothing", times["ours"][1], short, note=note)
    titles = {"line_profiler": "line_profiler", "scalene": "Scalene, which samples the CPU"}
    for peer, title in titles.items():
        if peer in missing:
            yield Row.missing(f"{title}: the same", missing[peer])
            continue
        yield Row.shown(f"{title}: lines of 1 ms", times[peer][0], long, note=note)
        yield Row.shown(f"{title}: lines of nothing", times[peer][1], short, note=note)
    if "line_profiler" not in missing:
        ours, theirs = ((times[way][1] - short) / (2 * SHORT) for way in ("ours", "line_profiler"))
        note = "line_profiler, which knows no GPU"
        yield Row.shown("--lines, what it costs a line", ours, theirs, note=note)


def _measured(way: str) -> list[float]:
    """Seconds of the two loops in a process of its own.

    Raises:
        RuntimeError: it failed.
    """
    with tempfile.TemporaryDirectory() as folder:
        program, out = Path(folder) / "program.py", Path(folder) / "out.json"
        program.write_text(_SCRIPT)
        command = [sys.executable, str(program), way, str(out)]
        if way == "scalene":
            profile = ["-m", "scalene", "run", "--cpu-only", "-o", str(Path(folder) / "profile")]
            command = [sys.executable, *profile, str(program), "---", "none", str(out)]
        done = subprocess.run(
            command,
            env=python_environment(environment(Scenario(devices=2))),
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        if not out.exists():
            raise RuntimeError(f"{way} failed:\n{done.stdout}\n{done.stderr}")
        times: list[float] = json.loads(out.read_text())
        return times


def _spin(seconds: float) -> None:
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


def _long() -> float:
    begun = time.perf_counter()
    for _ in range(LONG):
        _spin(1e-3)
    return time.perf_counter() - begun


def _short() -> float:
    x = 0
    begun = time.perf_counter()
    for i in range(SHORT):
        x = i
    del x
    return time.perf_counter() - begun


def measure(way: str) -> list[float]:
    """Seconds of the loop of long lines and of that of short ones, traced in this way."""
    import torch

    torch.ones(1, device="cuda")
    return [_traced(way, loop) for loop in (_long, _short)]


def _traced(way: str, loop: Callable[[], float]) -> float:
    took: list[float] = []

    def run() -> None:
        took.append(loop())

    if way == "ours":
        from tests.support.line_cells import measured

        assert measured("run()", (loop,), run=run).lines is not None
    elif way == "line_profiler":
        import line_profiler

        profiler = line_profiler.LineProfiler(loop)
        profiler.runcall(run)
    else:
        run()
    return took[0]
