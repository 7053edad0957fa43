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
    "an exit function": (
        "atexit.register(print, x);",
        "atexit.unregister(print)",
        "something that no name leads to",
    ),
    "a library": (
        "import json; json.kept_for_a_test = {'x': x}",
        "del json.kept_for_a_test",
        "something that no name leads to",
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


#: What only ``x`` leads to, however it does.
WHOLE = {
    "a module": "x = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.BatchNorm1d(64)).cuda()",
    "a module with gradients": """
x = torch.nn.Linear(64, 64).cuda()
x(torch.ones(2, 64, device="cuda")).sum().backward()
torch._C._cuda_clearCublasWorkspaces()
""",
    "a module and its optimizer": """
x = [torch.nn.Linear(64, 64).cuda()]
x.append(torch.optim.Adam(x[0].parameters()))
for p in x[0].parameters(): p.grad = torch.ones_like(p)
x[1].step(); del p
""",
    "a loss": """
x = (torch.ones(64, device="cuda", requires_grad=True) * 2).exp().sum()
""",
    "a function of autograd's": """
class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a): ctx.save_for_backward(a); ctx.kept = f(1); return a * 2
    @staticmethod
    def backward(ctx, g): return g * 2
x = Twice.apply(torch.ones(9, device="cuda", requires_grad=True).exp())
""",
    "objects": """
from dataclasses import dataclass
@dataclass
class Batch:
    a: object
    b: object = None
class Slots:
    __slots__ = ("a", "me")
x = Batch({"k": [f(1), (f(1),)]}, Slots()); x.b.a = f(1); x.b.me = x
""",
    "functions": """
import functools
def make(a):
    def g(b=f(1)): return a
    g.kept = f(1)
    return functools.partial(g, functools.lru_cache(g))
def numbers(a):
    yield a
x = [make(f(1)), numbers(f(1)), [f(1)].append, f(1).add, [f(1)].__iter__()]; next(x[1])
""",
    "containers": """
import collections, types
x = collections.OrderedDict(a=collections.deque([f(1)]), b=collections.defaultdict(list))
x["b"][1].append(frozenset([f(1)])); x["c"] = types.SimpleNamespace(t=f(1)); x["d"] = {f(1): 1}
x["e"] = types.MappingProxyType({1: f(1)}); x["f"] = collections.namedtuple("N", "t")(f(1))
""",
    "a class": "class x:\n    held = f(1)\n    def method(self): return __class__\n",
    "an exception": """
def fail(n):
    held = f(1)
    if n: fail(n - 1)
    raise ValueError(held)
try: fail(3)
except ValueError as error: x = error
""",
    "views": "x = f(4); x = [x, x[4:].view(-1, 2), x.untyped_storage(), x.detach()]",
    "a pinned result": "x = f(1)\nx",
    "a parameter in a list": "x = list(torch.nn.Linear(64, 64).cuda().parameters())",
    "a loader": """
data = torch.utils.data.TensorDataset(f(1)); x = iter(torch.utils.data.DataLoader(data)); del data
""",
}


@pytest.mark.parametrize("case", WHOLE)
def test_all_of_it_is_promised_where_nothing_else_holds_it(
    torch: ModuleType, cells: Any, case: str
) -> None:
    cells(WHOLE[case])
    expected = promised(cells, "x")
    assert expected == given(cells, "x")
    assert expected >= 512
    assert torch.cuda.memory_allocated() == 0
