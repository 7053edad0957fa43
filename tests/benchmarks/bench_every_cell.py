"""``%gpumem on``: what it costs after a cell that does nothing, and ``%%gpumem --lines`` a line."""

from __future__ import annotations

import ast
import gc
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from tests.benchmarks.process import SHELL, script
from tests.benchmarks.row import Row
from tests.virtual_gpu import Scenario, environment

#: So many devices at most, and seconds that one idle cell may cost there.
_DEVICES, _LIMIT = 8, 0.3e-3
_HERE = "from tests.benchmarks.bench_every_cell import"


def rows() -> Iterable[Row]:
    """The rows of the automatic mode, in processes of their own with 1 and with 8 devices."""
    for devices in (1, _DEVICES):
        found = script(
            f"{SHELL}\n{_HERE} measure\nprint(json.dumps(measure(ip)))",
            environment(Scenario(devices=devices)),
        )
        yield from _rows(devices, found)


def _rows(devices: int, found: dict[str, float]) -> Iterator[Row]:
    name = f"%gpumem on, an idle cell, {devices} device{'' if devices == 1 else 's'}"
    hooks, each = found["hooks"], found["raw"] / devices
    yield Row.at_most(
        f"{name}: hooks", hooks, found["scan"], 0.01, note="a reporter that scans gc.get_objects()"
    )
    yield Row.shown(
        f"{name}: hooks",
        hooks,
        found["raw"],
        note=f"one raw _cuda_memoryStats a device, {each * 1e6:.0f} µs each",
    )
    if devices == _DEVICES:
        yield Row.at_most(f"{name}: hooks", hooks, _LIMIT, 1, note="what an idle cell may cost")
        yield Row.shown(
            f"{name}: complete cells",
            max(found["with"] - found["without"], 0.0),
            _LIMIT,
            note="run_cell('pass') with the mode minus without it, in turns",
        )
    if devices == 1:
        yield Row.shown(
            "%%gpumem --lines, a line", found["line"], found["raw"], note="one raw reading"
        )


def measure(ip: Any) -> dict[str, float]:
    """Seconds an idle cell, measured in turns: the best of many, the median for complete cells."""
    import torch

    from gpumagic.cells.hooks import CellHooks
    from gpumagic.cells.line_sources import cell_source
    from gpumagic.memory.line_profiler import LineMeasurement
    from gpumagic.memory.per_cell import EveryCell

    used = range(torch.cuda.device_count())
    kept = [torch.empty(1, device=f"cuda:{ordinal}") for ordinal in used]
    read = torch._C._cuda_memoryStats
    called = CellHooks(ip)
    every_cell = EveryCell(called, lambda cell: None)
    result = ip.run_cell("1", silent=False)

    def raw() -> None:
        for ordinal in used:
            read(ordinal)

    def hooks() -> None:
        called._before(result.info)
        called._after(result)

    def scan() -> None:
        # As the reporters do that list tensors: every object there is, those on a GPU added up.
        total = 0
        for thing in gc.get_objects():
            if issubclass(type(thing), torch.Tensor) and thing.is_cuda:
                total += thing.element_size() * thing.nelement()

    def cell() -> None:
        ip.run_cell("pass", store_history=True)

    every_cell.on()
    took = {"raw": _best(raw, 300), "hooks": _best(hooks, 300), "scan": _best(scan, 10)}
    every_cell.off()
    turns: dict[bool, list[float]] = {True: [], False: []}
    for _ in range(60):
        for watching in (True, False):
            every_cell.on() if watching else every_cell.off()
            turns[watching] += [_once(cell) for _ in range(5)]
    every_cell.off()
    took["with"], took["without"] = (statistics.median(turns[on]) for on in (True, False))
    code = compile("\n".join(f"x{i} = {i}" for i in range(1000)), "cell", "exec")

    def traced() -> None:
        with LineMeasurement([cell_source([code], "", 1, ast.Module([], []))]):
            exec(code, {})

    before = sys.gettrace()
    took["line"] = _best(traced, 10) / 1000
    assert sys.gettrace() is before
    del kept
    return took


def _once(function: Callable[[], None]) -> float:
    started = time.perf_counter()
    function()
    return time.perf_counter() - started


def _best(function: Callable[[], None], times: int) -> float:
    return min(_once(function) for _ in range(times))
