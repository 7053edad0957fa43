"""Who holds memory without a name: arrays of objects, tasks, threads, exit functions, libraries.

A dry run promises what `%gpumem free` then gives back, no more, and where all is known no less.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

from gpumagic.memory.attribution import ELSEWHERE
from tests.support.allocator import MIB

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


#: Not by a list: NumPy may ask the tensors in it for their values.
OBJECTS = """import pandas as pd
objects = np.empty(2, dtype=object); objects[0], objects[1] = f(1), f(2)
"""
HOLDING = {
    "an object array": "x = np.empty(2, dtype=object); x[0] = f(3)",
    "a view of one": "x = np.empty((2, 2), dtype=object); x[0, 1] = f(3); x = x.T[:1].reshape(-1)",
    "a long one": "x = np.empty(70_000, dtype=object); x[-1] = f(3)",
    "records": "x = np.zeros(2, dtype=[('n', int), ('emb', object)]); x['emb'][1] = f(3)",
    "a subclass": "class A(np.ndarray): pass\nx = np.empty(2, dtype=object).view(A); x[0] = f(3)",
    "an array in an array": "y = np.empty(1, dtype=object); y[0] = [f(3)]\nx = {'a': y}; del y",
    "a column": f"{OBJECTS}x = pd.DataFrame({{'id': [1, 2], 'emb': objects}}); del objects",
    "a series": f"{OBJECTS}x = pd.Series(objects); del objects",
    "a slice": "x = slice(f(3), None)",
}


def test_what_the_collector_does_not_track(torch: ModuleType, cells: Any) -> None:
    names = made(cells, HOLDING)
    found = device(cells)
    for case, name in names.items():
        assert found[name].bytes == found[name].alone == 3 * MIB, case
    assert found.unattributed == 0
    everything = " ".join(names.values())
    assert promised(cells, everything) == given(cells, everything) == 3 * MIB * len(names)


def made(cells: Any, cases: dict[str, str]) -> dict[str, str]:
    """By case, the name that takes the place of ``x`` in it, once all have been run."""
    names = {case: f"x{number}" for number, case in enumerate(cases)}
    for case, source in cases.items():
        cells(re.sub(r"\bx\b", names[case], source))
    return names


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
        " in run, in a running thread)",
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
        "an unknown reference",
    ),
    "a library": (
        "import json; json.kept_for_a_test = {'x': x}",
        "del json.kept_for_a_test",
        "an unknown reference",
    ),
}


@pytest.mark.parametrize("case", OWNERS)
def test_another_owner_is_named_and_its_memory_not_promised(
    torch: ModuleType, cells: Any, case: str
) -> None:
    make, end, called = OWNERS[case]
    cells("x = [f(3)]" if case != "a timer" else "x = f(3)")
    cells(make)
    try:
        found = device(cells)["x"]
        assert (found.bytes, found.alone) == (3 * MIB, 0)
        assert any(called in name for name in found.also), found.also
        assert promised(cells, "x") == 0
    finally:
        cells(end)
    assert device(cells)["x"].alone == 3 * MIB
    assert promised(cells, "x") == given(cells, "x") == 3 * MIB


READ = """
def step():
    h = f(2)
    entered.set(); leave.wait()
    del h
    entered.set(); again.wait()
def noting():
    mine = locals()
    h = f(3)
    entered.set(); again.wait()
    seen.update(mine)
seen = {}
entered, leave, again = threading.Event(), threading.Event(), threading.Event()
threads = [threading.Thread(target=step), threading.Thread(target=noting)]
for thread in threads: entered.clear(); thread.start(); entered.wait()
del thread
"""


def test_to_look_at_a_thread_keeps_nothing_and_changes_no_variables(
    torch: ModuleType, cells: Any
) -> None:
    """A function's former variables are freed, and its dictionary of variables is unchanged."""
    cells(READ)
    try:
        found = device(cells)
        assert sum(h.bytes for h in found.holders if h.name.startswith("h (")) >= 2 * MIB
        cells("entered.clear(); leave.set(); entered.wait()")
        assert torch.cuda.memory_allocated() == 3 * MIB
    finally:
        cells("leave.set(); again.set(); [thread.join() for thread in threads]; del threads")
    assert cells("seen").value == {}
    assert torch.cuda.memory_allocated() == 0


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
    "a result": "x = f(1)\nx",
    "a parameter in a list": "x = list(torch.nn.Linear(64, 64).cuda().parameters())",
    "a loader": """
data = torch.utils.data.TensorDataset(f(1)); x = iter(torch.utils.data.DataLoader(data)); del data
""",
}


def test_all_of_it_is_promised_where_nothing_else_holds_it(torch: ModuleType, cells: Any) -> None:
    names = made(cells, WHOLE)
    found = device(cells)
    for case, name in names.items():
        holders = [h for h in found.holders if h.name == name or name in h.also]
        assert holders, case
        assert not [h for h in holders if ELSEWHERE in h.also], case
    everything = " ".join(names.values())
    expected = promised(cells, everything)
    free = given(cells, everything)
    if hasattr(torch._C._autograd.SavedTensor, "data"):
        assert expected == free
    else:  # what autograd has saved is not reported: two tensors of 9 numbers
        assert expected == free - 1024
    assert torch.cuda.memory_allocated() == 0


@pytest.mark.usefixtures("all_objects")
def test_a_local_of_what_runs_in_this_thread(torch: ModuleType, cells: Any, ip: Any) -> None:
    number = ip.execution_count
    cells("""
def step():
    h = f(2)
    deep = [[f(3)]]
    return get_ipython().run_line_magic("gpumem", "vars --gc -o -q")
found = step()
""")
    sites = {site.where: site.bytes for site in cells("found").value.devices[0].sites}
    where = f"In[{number}] line 4 in step, which is running"
    assert sites == {f"held by h ({where})": 2 * MIB, f"held by deep ({where})": 3 * MIB}


def test_free_says_who_else_holds_it(torch: ModuleType, cells: Any, ip: Any) -> None:
    cells("a = f(3); a_alias = a; c = 3; both = [a, f(1)]; del a_alias; a_alias = [a]")
    dry = cells("%gpumem free --dry-run a c both").text
    assert "a_alias holds the same memory as a" in dry
    assert "a_alias holds some of both's memory" in dry
    assert "c holds no GPU memory" in dry
    cells("del both")
    said = cells("%gpumem free a c").text
    assert "deleted a; a_alias holds the same memory" in said
    assert "deleted c; it held no GPU memory" in said
    assert not {"a", "c"} & ip.user_ns.keys()
    assert "holds" not in cells("%gpumem free a_alias").text
    assert torch.cuda.memory_allocated() == 0


def test_free_deletes_no_module(torch: ModuleType, cells: Any, ip: Any) -> None:
    cells("a = f(1)")
    error = cells("%gpumem free a torch", raising=False).error
    assert str(error).startswith("%gpumem free: 'torch' is a module, and stays loaded")
    assert {"a", "torch"} <= ip.user_ns.keys()


APPLICATION = """
%load_ext gpumagic
import asyncio, threading, torch
f = lambda n: torch.ones(n << 20, dtype=torch.uint8, device="cuda")
def fail():
    held = f(1)
    raise ValueError
async def work():
    h = f(16)
    await asyncio.sleep(10**6)
    del h
task = asyncio.ensure_future(work()); del task
T = threading.Thread(target=print); T.start(); T.join()
try:
    fail()
except ValueError as error:
    keep = error
await asyncio.sleep(0)
"""


def test_in_a_kernel_a_finished_thread_does_not_hold_the_tasks_of_the_loop(kernel: Any) -> None:
    """A thread refers to `sys.excepthook`, which is the application's, which leads everywhere."""
    fresh = kernel()
    fresh.run(APPLICATION)
    fresh.run("found = %gpumem vars -o -q")
    held = fresh.value("{h.name: (h.bytes, h.also) for h in found.devices[0].holders if h.bytes}")
    assert held["a task of the event loop (work)"] == (16 * MIB, ())
    assert held["keep"][0] == MIB
    assert not [name for name, (_, also) in held.items() if "T" in (name, *also)]
