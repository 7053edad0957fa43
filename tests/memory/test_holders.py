"""``%gpumem vars`` and ``gpumagic.holders()``: each byte has an owner, no user's code runs."""

from __future__ import annotations

import gc
import re
import sys
import tracemalloc
import types
import warnings
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest

from gpumagic.cuda.pytorch import allocator
from gpumagic.memory.holders import holders
from gpumagic.results.memory.holders import DeviceHolders, Holders
from tests.support.allocator import MIB, says_what_is_saved


def adds_up(torch: ModuleType, found: Holders) -> None:
    for ordinal, device in found.devices.items():
        assert device.allocated == torch.cuda.memory_allocated(ordinal)
        total = device.named + device.notebook + device.unattributed + device.rounding
        assert total == device.allocated
        held = [(h.bytes, h.by_notebook) for h in device.holders]
        assert sum(size for size, own in held if not own) == device.named
        assert sum(size for size, own in held if own) == device.notebook
        assert all(sum(h.parts.values()) == h.bytes for h in device.holders)
        assert device.unattributed >= 0


def of(torch: ModuleType, namespace: dict[str, Any], **options: Any) -> DeviceHolders:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = holders(namespace, **options)
    adds_up(torch, found)
    return found.devices[0]


@pytest.fixture
def new(torch: ModuleType) -> Iterator[Callable[..., Any]]:
    yield lambda size=MIB, device=0: torch.empty(size, dtype=torch.uint8, device=f"cuda:{device}")
    torch._C._cuda_clearCublasWorkspaces()  # a product's, which the allocator counts


# --- to the byte ---------------------------------------------------------------------------------


def test_the_column_adds_up(torch: ModuleType, new: Any) -> None:
    sizes = [1, 511, 512, 513, 3 * MIB + 1, 30 * MIB, 1_234_567]
    names = {f"x{size}": new(size) for size in sizes}
    hidden = [new(777), new(5 * MIB, 1)]
    found = holders(names)
    adds_up(torch, found)
    device = found.devices[0]
    assert {h.name: h.bytes for h in device.holders} == {f"x{s}": s for s in sizes}
    assert device.unattributed == 777
    assert found.devices[1].unattributed == 5 * MIB
    assert len(hidden) == 2


def test_shared_storage_counts_once_and_each_owner_is_named(torch: ModuleType, new: Any) -> None:
    base = new(MIB)
    device = of(
        torch, {"base": base, "view": base[17:], "empty": base[:0], "other": base.view(-1, 2)}
    )
    assert device.named == MIB
    assert device["base"].bytes == MIB
    assert device["base"].frees == 0
    assert set(device["base"].also) == {"view", "empty", "other"}
    assert device["view"].bytes == 0


def test_a_module_its_optimizer_and_tied_weights(torch: ModuleType, new: Any) -> None:
    a, b = torch.nn.Linear(256, 256, bias=False), torch.nn.Linear(256, 256, bias=False)
    model = torch.nn.Sequential(a, b).cuda()
    b.weight = a.weight
    model.register_buffer("mask", new(1000))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model(torch.ones(1, 256, device="cuda")).sum().backward()
    optimizer.step()
    torch._C._cuda_clearCublasWorkspaces()
    last = next(model.parameters())
    device = of(torch, {"last": last, "optimizer": optimizer, "model": model})
    weight = 256 * 256 * 4
    assert dict(device["model"].parts) == {
        "parameters": weight,
        "other tensors": 1000,
        "gradients": weight,
    }
    assert dict(device["optimizer"].parts) == {"optimizer state": weight}
    assert set(device["model"].also) == {"optimizer", "last"}
    assert device["optimizer"].frees == weight
    assert device["model"].frees == 1000


def test_what_autograd_saved(torch: ModuleType, new: Any) -> None:
    weight = torch.ones(256, 256, device="cuda", requires_grad=True)
    with torch.no_grad():
        x = torch.ones(256, 256, device="cuda")
    loss = (x * weight).exp().exp().sum()
    device = of(torch, {"weight": weight, "loss": loss})
    if says_what_is_saved(torch):
        assert device["loss"].parts["autograd graph"] >= 2 * 256 * 256 * 4
        assert "loss" in device["weight"].also
    else:
        assert device.unattributed >= 2 * 256 * 256 * 4
        assert any("autograd" in note for note in holders({"loss": loss}).notes)
    del x


def test_in_a_script_its_own_names_are_no_others(
    torch: ModuleType, new: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As multiprocessing, once imported, gives the main module a second name."""
    script: Any = types.ModuleType("__main__")
    script.__file__ = "/home/me/train.py"
    script.x = new()
    for name in ("__main__", "__mp_main__"):
        monkeypatch.setitem(sys.modules, name, script)
    found = of(torch, {**vars(script)})["x"]
    del script.x
    assert (found.also, found.frees) == ((), MIB)


@pytest.mark.parametrize("bound", ["time", "objects"])
def test_what_there_was_no_time_for_is_said(
    torch: ModuleType, new: Any, monkeypatch: pytest.MonkeyPatch, bound: str
) -> None:
    gc.disable()
    try:
        many: list[Any] = []
        many += [[many] for _ in range(5000)]
        many.append(new(MIB))
        del many
        if bound == "objects":
            monkeypatch.setattr("gpumagic.memory.objects.walk.LIMIT", 3000)
        found = holders({"x": new(777)}, seconds=None if bound == "objects" else 1e-9)
    finally:
        gc.enable()
        gc.collect()
    assert (found.devices[0].garbage, found.devices[0].live) == (None, None)
    assert found.devices[0].unattributed == MIB
    assert "variable: there was no time to see whether it is garbage or in use" in str(found)


@pytest.mark.parametrize("garbage", [False, True])
def test_what_the_look_itself_takes(new: Any, garbage: bool) -> None:
    """By its bounds a few hundred MiB; of long lists of what leads nowhere it keeps nothing."""
    many: list[Any] = [(i, [i]) for i in range(50_000)] + [float(i) for i in range(300_000)]
    gc.disable()
    tracemalloc.start()
    try:
        if garbage:
            cycle = [new()]
            cycle.append(cycle)
            del cycle
        tracemalloc.reset_peak()
        before, _ = tracemalloc.get_traced_memory()
        holders({"many": many, "x": new(777)}, seconds=None)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        gc.enable()
        gc.collect()
    # Of each object that is visited, and of each that may be garbage.
    assert peak - before < 200 * 100_000 + (160 * 100_000 if garbage else 0)


def test_what_a_graph_refers_to_is_still_a_parameter_or_an_input(torch: ModuleType) -> None:
    """An output is at hand, as after most cells."""
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 64)).cuda()
    images = torch.ones(8, 64, device="cuda")
    y = model(images)
    device = of(torch, {"model": model, "images": images, "y": y})
    assert list(device["model"].parts) == ["parameters"]
    assert list(device["images"].parts) == [""]
    y.sum().backward()
    del y
    y = model(images)
    device = of(torch, {"y": y, "model": model, "images": images})
    assert sorted(device["model"].parts) == ["gradients", "parameters"]


def test_hooks_on_saved_tensors_do_not_run(torch: ModuleType) -> None:
    ran: list[Any] = []
    weight = torch.ones(64, device="cuda", requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, ran.append):
        loss = weight.sin().sum()  # which saves its argument
    of(torch, {"loss": loss})
    assert not ran


def test_what_cpp_keeps_of_sparse_tensors_and_scripted_modules(torch: ModuleType, new: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says that they are new, or old
        kept = {
            "scripted": torch.jit.script(torch.nn.Linear(64, 64).cuda()),
            "sparse": torch.sparse_coo_tensor([[0, 1], [1, 0]], [1.0, 2.0], device="cuda"),
            "rows": torch.sparse_csr_tensor([0, 1, 2], [1, 0], [1.0, 2.0], device="cuda"),
        }
    device = of(torch, kept)
    assert sizes(device) == {"scripted": 4 * (64 * 64 + 64), "sparse": 40, "rows": 48}
    assert device.unattributed == 0


def test_deep_nesting_needs_no_recursion(torch: ModuleType, new: Any) -> None:
    nested: Any = new(1000)
    for _ in range(50_000):
        nested = [nested]
    assert of(torch, {"nested": nested})["nested"].bytes == 1000
    while isinstance(nested, list):  # undone by hand: deep structures are hard on the interpreter
        nested = nested.pop()


def test_namespaces_of_code_that_is_no_module(torch: ModuleType, new: Any) -> None:
    space: dict[str, Any] = {"held": new(1000)}
    exec("def function(): return held\ndef generator(): yield held", space)
    function, running = space["function"], space["generator"]()
    next(running)
    del space
    assert sizes(of(torch, {"function": function})) == {"function": 1000}
    assert sizes(of(torch, {"running": running})) == {"running": 1000}


def sizes(device: DeviceHolders) -> dict[str, int]:
    return {holder.name: holder.bytes for holder in device.holders if holder.bytes}


@pytest.mark.parametrize("name", ["__model", "Out", "In", "_i", "_i3", "exit"])
def test_a_name_like_the_notebooks_is_the_users(
    torch: ModuleType, cells: Any, ip: Any, name: str
) -> None:
    before = ip.user_ns.get(name)
    ip.user_ns[name] = [torch.empty(1000, dtype=torch.uint8, device="cuda")]
    try:
        assert holders(shell=ip).devices[0][name].bytes == 1000
        assert not holders(shell=ip).devices[0][name].by_notebook
    finally:
        ip.user_ns[name] = before


# --- in a notebook -------------------------------------------------------------------------------


@pytest.fixture
def cells(torch: ModuleType, ip: Any, run_cell: Any) -> Any:
    ip.user_ns["torch"] = torch
    yield run_cell
    run_cell("%gpumem free -q")  # the test's shell, and what it pins, outlives the test


def test_what_the_notebook_references(torch: ModuleType, cells: Any, ip: Any) -> None:
    cells("torch.empty(1000, dtype=torch.uint8, device='cuda').view(-1, 1)[:0].cpu()")
    cells("class Shy:\n    def __init__(self): self.held = torch.empty(7000, device='cuda:0')")
    number = ip.execution_count
    cells("Shy()")
    cells("x = torch.empty(500, device='cuda')")
    found = holders(shell=ip)
    adds_up(torch, found)
    device = found.devices[0]
    assert device["x"].bytes == 2000
    assert device.notebook == device[f"Out[{number}]"].bytes == 28000
    assert device[f"Out[{number}]"].by_notebook
    assert "_" in device[f"Out[{number}]"].also
    ran = cells("%gpumem vars")
    assert f"! Out[{number}]" in ran.text
    assert "!: kept by the notebook, not by a variable; %gpumem free gives it back" in ran.text
    assert "variables 1.95 KiB + notebook 27.3 KiB + rounding" in ran.text
    assert "<table" in ran.html


def test_without_a_gpu_in_use(run_python: Callable[..., str]) -> None:
    assert "torch is not imported" in run_python("import gpumagic; print(gpumagic.holders())")
    code = "import torch, gpumagic; print(gpumagic.holders(), torch.cuda.is_initialized())"
    assert run_python(code).endswith("False")


@pytest.mark.usefixtures("all_objects")
def test_no_object_is_kept_alive(torch: ModuleType, new: Any) -> None:
    gc.collect()
    gc.disable()
    try:
        names = {"x": [new(MIB)], "model": torch.nn.Linear(9, 9).cuda()}
        before = torch.cuda.memory_allocated()
        holders(names)
        holders(names)
        assert torch.cuda.memory_allocated() == before
        names.clear()
        assert torch.cuda.memory_allocated() == 0
    finally:
        gc.enable()


# --- what deleting a variable frees --------------------------------------------------------------

SETUP = """
import asyncio, sys, threading, time
import numpy as np
import torch
f = lambda n: torch.ones(n << 20, dtype=torch.uint8, device="cuda")
"""
#: Not by a list: NumPy may ask the tensors in it for their values.
OBJECTS = """import pandas as pd
objects = np.empty(2, dtype=object); objects[0], objects[1] = f(1), f(2)
"""
#: What only ``x`` leads to, however it does.
WHOLE = {
    "an object array": "x = np.empty(2, dtype=object); x[0] = f(3)",
    "a view of one": "x = np.empty((2, 2), dtype=object); x[0, 1] = f(3); x = x.T[:1].reshape(-1)",
    "a long one": "x = np.empty(70_000, dtype=object); x[-1] = f(3)",
    "a subclass": "class A(np.ndarray): pass\nx = np.empty(2, dtype=object).view(A); x[0] = f(3)",
    "an array in an array": "y = np.empty(1, dtype=object); y[0] = [f(3)]\nx = {'a': y}; del y",
    "a column": f"{OBJECTS}x = pd.DataFrame({{'id': [1, 2], 'emb': objects}}); del objects",
    "a series": f"{OBJECTS}x = pd.Series(objects); del objects",
    "a slice": "x = slice(f(3), None)",
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
THREAD = """
entered, leave = threading.Event(), threading.Event()
def run(given):
    h = given
    entered.set()
    leave.wait()
thread = threading.Thread(target=run, args=(x,)); thread.start(); entered.wait()
"""
#: By case: what makes another owner of ``x``, and what ends it.
OWNERS = {
    "a task": (  # with Python's own loop, as `nest_asyncio` has it, its error is left in a cycle
        "async def work(given):\n    await asyncio.sleep(10**6)\n    return given\n"
        "task = asyncio.ensure_future(work(x)); await asyncio.sleep(0)",
        "task.cancel(); del task; await asyncio.sleep(0); import gc; gc.collect()",
    ),
    "a timer": (
        "handle = asyncio.get_running_loop().call_later(10**6, len, x); await asyncio.sleep(0)\n"
        "del handle",
        "loop = asyncio.get_running_loop(); loop._scheduled.clear(); del loop; "
        "await asyncio.sleep(0)",
    ),
    "a thread": (
        THREAD,
        "leave.set(); thread.join(); del thread",
    ),
    "an attribute of sys": ("sys.kept_for_a_test = [x]", "del sys.kept_for_a_test"),
    "a library": (
        "import json; json.kept_for_a_test = {'x': x}",
        "del json.kept_for_a_test",
    ),
}


@pytest.fixture
def freeing(torch: ModuleType, run_cell: Any) -> Iterator[Any]:
    run_cell(SETUP)
    run_cell("%gpumem free -q")
    yield run_cell
    run_cell("%gpumem free -q")


def of_device(cells: Any) -> DeviceHolders:
    cells("%gpumem vars -v found -q")
    found: Holders = cells("found").value
    cells("del found")
    return found.devices[0]


def freed(cells: Any, names: str) -> int:
    cells(f"%gpumem free -v gone -q {names}")
    found = cells("gone").value
    cells("del gone")
    return int(found.before[0].allocated - found.after[0].allocated)


def test_all_of_it_where_nothing_else_holds_it(torch: ModuleType, freeing: Any) -> None:
    names = {case: f"x{number}" for number, case in enumerate(WHOLE)}
    for case, source in WHOLE.items():
        freeing(re.sub(r"\bx\b", names[case], source))
    found = of_device(freeing)
    for case, name in names.items():
        holders = [h for h in found.holders if h.name == name or name in h.also]
        assert holders, case
        assert not [h for h in holders if "another reference" in h.also], case
    if says_what_is_saved(torch):
        assert found.unattributed == 0
    freed(freeing, " ".join(names.values()))
    assert torch.cuda.memory_allocated() == 0


@pytest.mark.parametrize("case", OWNERS)
def test_nothing_where_something_else_holds_it(torch: ModuleType, freeing: Any, case: str) -> None:
    make, end = OWNERS[case]
    freeing("x = [f(3)]" if case != "a timer" else "x = f(3)")
    freeing(make)
    try:
        found = of_device(freeing)["x"]
        assert (found.bytes, found.frees) == (3 * MIB, 0)
        assert "another reference" in found.also
    finally:
        freeing(end)
    assert of_device(freeing)["x"].frees == 3 * MIB
    assert freed(freeing, "x") == 3 * MIB


# --- what no variable leads to --------------------------------------------------------------------


ENGINE = """
import threading
stop, begun = threading.Event(), threading.Event()
def engine():
    mine = torch.ones(2**20, device="cuda", requires_grad=True)
    (mine * 2).sum().backward()
    begun.set()
    stop.wait(400)
thread = threading.Thread(target=engine, name="the engine")
thread.start()
assert begun.wait(400)
"""
#: A cycle whose gradient only C++ holds, beside a tensor of a variable.
GARBAGE = """
class Node: pass
node = Node()
node.layer = torch.nn.Linear(1024, 1024, bias=False, device="cuda")
node.layer(torch.ones(1, 1024, device="cuda")).sum().backward()
node.me, node.kept = node, kept
assert node.layer.weight.grad is not None
del node
"""


def test_what_no_variable_leads_to_has_the_one_whose_it_is(
    torch: ModuleType, cells: Any, ip: Any
) -> None:
    """Garbage comes back by ``free``; a thread's variables are the thread's; nothing is freed."""
    cells("import torch; kept = torch.empty(2**20, dtype=torch.uint8, device='cuda')")
    collected = list[str]()
    gc.callbacks.append(lambda phase, _: collected.append(phase))
    gc.disable()
    try:
        cells(ENGINE)
        cells(GARBAGE)
        cells(
            "address = torch.cuda.caching_allocator_alloc(3 * 2**20, 0)  # as extensions in C++ do"
        )
        before = torch.cuda.memory_allocated()
        ran = cells("%gpumem vars -v found")
        device = ip.user_ns["found"].devices[0]
        adds_up(torch, ip.user_ns["found"])
        assert device["kept"].bytes == MIB
        assert device.garbage == 2 * 4 * MIB
        assert device.live == 2 * 4 * MIB
        in_cpp = device.unattributed - device.garbage - device.live
        assert in_cpp >= 3 * MIB  # and before torch 2.15 cuBLAS's work space
        for line in (
            "garbage in cycles: no variable leads to it; %gpumem free gives it back",
            "running code, libraries: objects in use that no variable leads to",
            "thread the engine runs In[2] line ",
        ):
            assert line in ran.text
        assert (torch.cuda.memory_allocated(), collected) == (before, [])
        cells("stop.set(); thread.join()")
        cells("torch.cuda.caching_allocator_delete(address)\n%gpumem free")
    finally:
        gc.enable()
        gc.callbacks.pop()
        cells("stop.set(); thread.join()")
    assert torch.cuda.memory_allocated() == MIB
    cells("del kept")


SHARED = """
import threading
stop, begun = threading.Event(), threading.Event()
class Node: pass
def engine():
    base = torch.ones(2**20, device="cuda", requires_grad=True)
    h, node = base.exp(), Node()
    mine, node.other, node.me = h.sum(), h.sum(), node
    del h, node
    begun.set()
    stop.wait(400)
thread = threading.Thread(target=engine)
thread.start()
assert begun.wait(400)
"""


def test_what_garbage_shares_is_not_garbage(torch: ModuleType, cells: Any, ip: Any) -> None:
    """What autograd has saved, which a thread's tensor needs, too, would not come back."""
    if not says_what_is_saved(torch):
        pytest.skip("this torch does not say what autograd has saved")
    gc.disable()
    try:
        cells(SHARED)
        cells("%gpumem vars -v found")
        device = ip.user_ns["found"].devices[0]
        assert (device.garbage, device.live) == (4, 2 * 4 * MIB + 4)
    finally:
        gc.enable()
        cells("stop.set(); thread.join()")
    cells("%gpumem free")
    assert torch.cuda.memory_allocated() == 0


def test_the_look_itself_collects_nothing(new: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """As Python's collector would, in the midst of it: what it frees was still counted."""
    read, thresholds = allocator.held, gc.get_threshold()

    def then_much_else(ordinal: int) -> tuple[int, int]:
        found = read(ordinal)
        gc.set_threshold(1, 1, 1)
        _ = [[i] for i in range(1000)]
        return found

    monkeypatch.setattr(allocator, "held", then_much_else)
    cycle: list[Any] = [new(MIB)]
    cycle.append(cycle)
    gc.disable()
    del cycle
    try:
        gc.enable()
        found = holders({}).devices[0]
    finally:
        gc.set_threshold(*thresholds)
        gc.collect()
    assert (found.allocated, found.garbage, found.live) == (MIB, MIB, 0)
    assert gc.isenabled()
