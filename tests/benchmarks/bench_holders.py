"""``%gpumem vars``, ``free`` and the report on out of memory: what they cost and bring back."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterable, Iterator
from typing import Any

from tests.benchmarks.process import SHELL, script
from tests.benchmarks.row import Row

#: Seconds in which 10,000 tensors are to be told.
VARS = 0.2
#: Seconds in which an out-of-memory error is to be explained.
EXPLAINED = 0.3


def rows() -> Iterable[Row]:
    """The rows. Needs a GPU, real or virtual."""
    yield from _vars()
    yield from _oom()


def _nested(torch: Any, number: int) -> dict[str, Any]:
    """Tensors three containers deep: by hundreds in lists, in dictionaries, in one list."""
    made = [torch.empty(64, device="cuda") for _ in range(number)]
    groups = [{"group": made[i : i + 100]} for i in range(0, number, 100)]
    return {"nested": groups}


def _vars() -> Iterator[Row]:
    import torch

    from gpumagic.memory.holders import holders

    took: dict[int, float] = {}
    for number in (1_000, 10_000, 100_000):
        names = _nested(torch, number)
        times = []
        for _ in range(3 if number == 100_000 else 7):
            started = time.perf_counter()
            shown = str(holders(names))
            times.append(time.perf_counter() - started)
        assert "nested" in shown
        took[number] = min(times)
        device = holders(names).devices[0]
        assert device.rounding is not None
        total = device.named + device.notebook + device.unattributed + device.rounding
        yield Row.equal(
            f"%gpumem vars, {number:,} tensors: the column's sum",
            total,
            torch.cuda.memory_allocated(),
            note="torch.cuda.memory_allocated()",
        )
        del names
    yield Row.at_most(
        "%gpumem vars, 10,000 tensors", took[10_000], VARS, 1, note="the bar, with its text"
    )
    for more, less in ((10_000, 1_000), (100_000, 10_000)):
        yield Row.at_most(
            f"%gpumem vars, a tensor among {more:,}",
            took[more] / more,
            took[less] / less,
            2,
            note=f"a tensor among {less:,}: growth is linear",
        )
    torch.cuda.empty_cache()


_SESSION = """
import contextlib, gc, io
import torch
ip.run_line_magic("load_ext", "gpumagic")
def run(cell):
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        ip.run_cell(cell, store_history=True)
run('''
import torch
kept = torch.empty(2**28, device="cuda")
def step():
    hidden = [torch.empty(2**27, device="cuda") for _ in range(8)]
    return torch.empty(2**44, device="cuda")
''')
before = torch.cuda.memory_allocated()
def held():
    return torch.cuda.memory_allocated() - before
from gpumagic.magics import failures
took = []
explain = failures.explain
def timed(*arguments):
    started = time.perf_counter()
    explain(*arguments)
    took.append(time.perf_counter() - started)
failures.explain = timed
run("step()")
run("step()")
after = held()
gc.collect()
torch.cuda.empty_cache()
usual = held()
run("%gpumem free")
print(json.dumps([after, usual, held(), took]))
"""


def _oom() -> Iterator[Row]:
    from tests.virtual_gpu import Scenario, environment

    runs = [script(SHELL + _SESSION, environment(Scenario())) for _ in range(3)]
    held, usual, ours, _ = runs[0]
    yield Row.equal(
        "%gpumem free after out of memory: recovered",
        held - ours,
        held,
        note=f"all; gc.collect() and empty_cache() recovered {(held - usual) / 2**20:.0f} MiB",
    )
    first = statistics.median(took[0] for *_, took in runs)
    second = statistics.median(took[1] for *_, took in runs)
    note = "the bar; in a fresh process, imports included"
    yield Row.at_most("out of memory explained, the first time", first, EXPLAINED, 1, note=note)
    yield Row.at_most("out of memory explained, again", second, EXPLAINED, 1, note="the bar")
