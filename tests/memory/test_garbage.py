"""What no variable leads to, and what deleting one frees: as Python's collector then finds it."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from importlib.metadata import version
from types import ModuleType
from typing import Any

import pytest

from gpumagic.memory.holders import holders
from tests.support.allocator import says_what_is_saved

SETUP = """
class Thing: pass
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(5))
        self.me = [self]
class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.more = x * 2
        ctx.save_for_backward(x)
        return x * 3
    @staticmethod
    def backward(ctx, g): return g
def new(**options): return torch.ones(1000, device="cuda", **options)
"""
#: Each leaves an object ``x`` in a cycle, or one that holds memory in C++.
MADE = {
    "a cycle": "x = Thing(); x.me = x; x.held = new()",
    "a list": "x = [new()]; x.append(x)",
    "a function": "def outer():\n    held = new()\n    def f(): return f, held\n"
    "    return f\nx = outer()",
    "a generator": "def g():\n    held = new(); me = x; yield held\nx = g(); next(x)",
    "an exception": "x = Thing()\ntry:\n    def fail():\n        held = new(); raise ValueError\n"
    "    fail()\nexcept ValueError as e:\n    x.error = e; e.x = x",
    "a model": "x = Net().cuda(); x.layers[0](torch.ones(2, 8, device='cuda')).sum().backward()",
    "an optimizer": "n = Net().cuda(); x = torch.optim.Adam(n.parameters())\n"
    "n.layers[0](torch.ones(2, 8, device='cuda')).sum().backward(); x.step(); x.me = x; del n",
    "a graph": "x = Thing(); x.me = x; x.loss = (new(requires_grad=True).exp() ** 2).sum()",
    "a graph of its own": "x = Thing(); x.me = x; x.loss = Doubled.apply(new(requires_grad=True))",
    "a hook": "x = new(requires_grad=True); y = x.exp(); y.me = y; x.register_hook(lambda g: x)\n"
    "x = Thing(); x.me = x; x.y = y; del y",
    "a gradient with a graph": "x = new(requires_grad=True)\n"
    "(x ** 3).sum().backward(create_graph=True)",
    "a cycle with that": "x = Thing(); x.me = x; x.held = new(); x.w = new(requires_grad=True)\n"
    "(x.w ** 3).sum().backward(create_graph=True)",
}


OLD = pytest.mark.skipif(
    version("torch").startswith("2.6."), reason="this torch never frees such a graph"
)
CASES = [
    pytest.param(code, id=name, marks=[OLD] if "create_graph" in code else [])
    for name, code in MADE.items()
]


@pytest.fixture
def made(torch: ModuleType) -> Iterator[dict[str, Any]]:
    space = {"torch": torch}
    exec(SETUP, space)
    torch.optim.Adam([torch.ones(1)])  # the first one imports torch's compiler: many objects
    gc.collect()
    gc.disable()
    yield space
    gc.enable()
    gc.collect()
    # What autograd's graph holds for ever is not left to other tests.
    for thing in gc.get_objects():
        if isinstance(thing, torch.Tensor):
            thing.grad = None
    del thing


def requested(torch: Any) -> int:
    return int(torch.cuda.memory_stats(0)["requested_bytes.all.current"])


def collected(torch: Any) -> int:
    """The bytes that the collector frees; what C++ held may be garbage in turn."""
    before = requested(torch)
    for _ in range(3):
        gc.collect()
    return before - requested(torch)


@pytest.mark.filterwarnings("ignore:Using backward")
@pytest.mark.parametrize("made_by", CASES)
def test_what_is_promised_is_what_the_collector_frees(
    torch: Any, made: dict[str, Any], made_by: str
) -> None:
    """Before the variable is deleted, and of what is left by that."""
    exec(made_by, made)
    found = holders(made)
    before, held = requested(torch), found.devices[0]["x"]
    assert ("create_graph" in str(found)) == ("create_graph" in made_by), "and why not"
    del made["x"]
    garbage, collected_now = holders(made).devices[0].garbage, collected(torch)
    freed = before - requested(torch)
    for promised, came in ((held.frees, freed), (garbage, collected_now)):
        assert promised == came if says_what_is_saved(torch) else promised <= came
