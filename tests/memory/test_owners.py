"""Who holds memory without a name: arrays of objects, tasks, threads, exit functions, Python itself.

A dry run promises what `%gpumem free` then gives back, no more, and where all is known no less.
"""

from __future__ import annotations

import atexit
import sys
import threading
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

from tests.memory.conftest import MIB

SETUP = """
import asyncio, atexit, sys, threading, time
import numpy as np
import torch
f = lambda n: torch.ones(n << 20, dtype=torch.uint8, device="cuda")
"""


@pytest.fixture
def cells(torch: ModuleType, ip: Any, run_cell: Any) -> Iterator[Any]:
    run_cell(SETUP)
    run_cell("%gpumem free -q")
    yield run_cell
    run_cell("%gpumem free -q")


def device(cells: Any, options: str = "") -> Any:
    return cells(f"%gpumem vars {options} -o -q").value.devices[0]


def promised(cells: Any, names: str) -> int:
    found = cells(f"%gpumem free --dry-run -o -q {names}").value
    return int(found.allocated_before[0] - found.allocated_after[0])


def given(cells: Any, names: str) -> int:
    found = cells(f"%gpumem free -o -q {names}").value
    return int(found.allocated_before[0] - found.allocated_after[0])


HOLDING = {
    "an object array": "x = np.empty(2, dtype=object); x[0] = f(3)",
    "a view of one": "x = np.empty((2, 2), dtype=object); x[0, 1] = f(3); x = x.T[:1].reshape(-1)",
    "a long one": "x = np.empty(70_000, dtype=object); x[-1] = f(3)",
    "records": "x = np.zeros(2, dtype=[('n', int), ('emb', object)]); x['emb'][1] = f(3)",
    "a subclass": "class A(np.ndarray): pass\nx = np.empty(2, dtype=object).view(A); x[0] = f(3)",
    "an array in an array": "y = np.empty(1, dtype=object); y[0] = [f(3)]\nx = {'a': y}; del y",
    "a column": "import pandas as pd\nx = pd.DataFrame({'id': [1, 2], 'emb': [f(1), f(2)]})",
    "a series": "import pandas as pd\nx = pd.Series([f(1), f(2)], dtype=object)",
    "a slice": "x = slice(f(3), None)",
}


@pytest.mark.parametrize("case", HOLDING)
def test_what_the_collector_does_not_track(torch: ModuleType, cells: Any, case: str) -> None:
    cells(HOLDING[case])
    found = device(cells)
    assert found["x"].bytes == found["x"].alone == 3 * MIB
    assert found.unattributed == 0
    assert promised(cells, "x") == given(cells, "x") == 3 * MIB


TASK = """
async def work():
    h = f(2)
    gone.append(1)
    await asyncio.sleep(10**6)
    return h
gone = []
task = asyncio.ensure_future(work())
await asyncio.sleep(0)
"""
THREAD = """
entered, leave = threading.Event(), threading.Event()
def run(given):
    h = given
    entered.set()
    leave.wait()
thread = threading.Thread(target=run, args=(x,)); thread.start(); entered.wait()
"""
#: By case: what makes another owner of ``x``, what ends it, and what the owner is called.
OWNERS = {
    "a task": (
        "async def work(given):\n    await asyncio.sleep(10**6)\n    return given\n"
        "task = asyncio.ensure_future(work(x)); await asyncio.sleep(0)",
        "task.cancel(); del task; await asyncio.sleep(0)",
        "a task of the event loop (work)",
    ),
    "a timer": (
        "handle = asyncio.get_running_loop().call_later(10**6, len, x); await asyncio.sleep(0)\n"
        "del handle",
        "loop = asyncio.get_running_loop(); loop._scheduled.clear(); del loop; "
        "await asyncio.sleep(0)",
        "a callback of the event loop (…)",
    ),
    "a thread": (
        THREAD,
        "leave.set(); thread.join(); del thread",
        " (In[N] line 5 in run, in a running thread)",
    ),
    "an attribute of sys": ("sys.kept_for_a_test = [x]", "del sys.kept_for_a_test", "sys.kept_for"),
    "an event": (
        "def after(kept=x): pass\nget_ipython().events.register('post_execute', after); del after",
        "events = get_ipython().events.callbacks['post_execute']\n"
        "events[:] = [e for e in events if e.__name__ != 'after']; del events",
        "a callback of IPython's (post_execute)",
    ),
}


@pytest.mark.parametrize("case", OWNERS)
def test_another_owner_is_named_and_its_memory_not_promised(
    torch: ModuleType, cells: Any, ip: Any, case: str
) -> None:
    make, end, called = OWNERS[case]
    cells("x = [f(3)]" if case != "a timer" else "x = f(3)")
    number = ip.execution_count
    cells(make)
    try:
        found = device(cells)["x"]
        assert (found.bytes, found.alone) == (3 * MIB, 0)
        assert any(called.replace("N", str(number)) in name for name in found.also), found.also
        assert promised(cells, "x") == 0
    finally:
        cells(end)
    assert device(cells)["x"].alone == 3 * MIB
    assert promised(cells, "x") == given(cells, "x") == 3 * MIB
