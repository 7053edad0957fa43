"""Blocks and functions of a script, measured: the same for time and for memory."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Callable, Iterator
from types import ModuleType
from typing import Any

import pytest

import gpumagic
from gpumagic.errors import SpecError
from gpumagic.memory.exact_peaks import LEDGER
from gpumagic.memory.measurement import Measurement
from gpumagic.results.memory.memory_delta import MemoryDelta
from gpumagic.results.timing.cuda_timing import CudaTiming

Decorator = Callable[[Any], Any]


@pytest.fixture(params=["cudatime", "gpumem"])
def decorator(request: pytest.FixtureRequest) -> Any:
    found: Decorator = getattr(gpumagic, request.param)
    return found


def kept(function: Any) -> Any:
    """The result that a decorated function has kept."""
    return getattr(function, "timing", None) or getattr(function, "memory", None)


def test_a_function_that_torch_compiles(
    decorator: Decorator, torch: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    """It becomes one graph without the measurement; an uncompiled call is measured."""
    nodes: list[str] = []

    def backend(graph: Any, inputs: Any) -> Any:
        nodes.extend(str(node.target) for node in graph.graph.nodes if node.op == "call_function")
        return graph.forward

    class Net(torch.nn.Module):  # type: ignore[name-defined,misc]
        @decorator
        def forward(self, x: Any) -> Any:
            return x * 2 + 1

    net, x = Net(), torch.ones(2)
    compiled = decorator(torch.compile(net, backend=backend, fullgraph=True))
    try:
        assert compiled(x).tolist() == [3, 3]
    finally:
        torch._dynamo.reset()
    assert len(nodes) == 2
    assert kept(Net.forward) is None
    assert kept(compiled) is not None
    assert net(x).tolist() == [3, 3]
    assert kept(Net.forward) is not None


class Called:
    """A callable object, as a module of torch is."""

    def __init__(self) -> None:
        self.parameters = [1]

    def __call__(self, x: int) -> int:
        return x + 1


class CalledLater:
    async def __call__(self, x: int) -> int:
        await asyncio.sleep(0)
        return x + 1


def plain(x: int) -> int:
    """Its own docstring."""
    return x + 1


async def later(x: int) -> int:
    await asyncio.sleep(0)
    return x + 1


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (plain, "plain"),
        (functools.partial(plain), "plain"),
        (functools.partial(functools.partial(Called())), "Called"),
        (Called(), "Called"),
        (abs, "abs"),
        (later, "later"),
        (CalledLater(), "CalledLater"),
    ],
)
def test_whatever_can_be_called(
    decorator: Decorator, capsys: pytest.CaptureFixture[str], function: Any, name: str
) -> None:
    """With or without parentheses."""
    for wrapped in (decorator(function), decorator()(function)):
        value = wrapped(-2)
        found = asyncio.run(value) if asyncio.iscoroutine(value) else value
        assert found == (2 if function is abs else -1)
        assert type(kept(wrapped)) in (CudaTiming, MemoryDelta)
        assert not kept(wrapped).partial
        assert wrapped.__doc__ == function.__doc__
        shown = capsys.readouterr().out
        assert shown.startswith(name)
        assert "wall" in shown or "GPU memory" in shown
        assert not hasattr(wrapped, "parameters")


def test_a_number_is_refused(decorator: Any) -> None:
    with pytest.raises(SpecError, match="can be measured, not int"):
        decorator()(1)


def test_methods_of_every_kind(decorator: Decorator) -> None:
    class Holder:
        @decorator
        def method(self, x: int) -> int:
            return x

        @staticmethod
        @decorator
        def inside(x: int) -> int:
            return x

        @decorator
        @staticmethod
        def outside(x: int) -> int:
            return x

        @decorator
        @classmethod
        def of_class(cls, x: int) -> int:
            return x

    assert (
        Holder().method(1) == Holder.inside(1) == Holder().outside(1) == Holder().of_class(1) == 1
    )
    assert kept(Holder.method) is not None
    assert kept(Holder.outside) is not None


def generator() -> Iterator[int]:
    yield 1


async def later_generator() -> AsyncIterator[int]:
    yield 1


class CalledGenerator:
    def __call__(self) -> Iterator[int]:
        yield 1


UNITERATED = [generator, functools.partial(generator), later_generator, CalledGenerator()]


@pytest.mark.parametrize("function", UNITERATED)
def test_a_generator_is_refused(decorator: Decorator, function: Any) -> None:
    with pytest.raises(gpumagic.SpecError, match="is a generator: measure the loop that uses it"):
        decorator(function)


@pytest.mark.parametrize("function", [*UNITERATED, later, CalledLater()])
def test_nor_is_the_creation_timed_repeatedly(function: Any) -> None:
    with pytest.raises(TypeError, match="only the creation would be timed"):
        gpumagic.cudatime(function, n=1, r=1)
    with pytest.raises(TypeError, match="only the creation would be timed"):
        gpumagic.cudatime(abs, n=1, r=1, setup=function)


def test_what_is_raised_passes_and_is_measured(decorator: Decorator) -> None:
    @decorator
    def fail() -> None:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        fail()
    assert kept(fail).partial


def test_one_object_measures_one_block_at_a_time(torch: ModuleType) -> None:
    scopes = len(LEDGER._scopes)
    for measured in (gpumagic.cudatime(), Measurement(), gpumagic.gpumem()):
        with measured as outer:
            held = torch.empty(2**20, dtype=torch.uint8, device="cuda")
            with pytest.raises(SpecError, match="measures a block already"), measured:
                pass
        assert not outer.partial
        with measured as again:
            del held
        assert not again.partial
    assert len(LEDGER._scopes) == scopes
