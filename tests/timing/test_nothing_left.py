"""What repeated runs take to measure is given back, however they end."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

import gpumagic
from gpumagic.timing import benchmark
from gpumagic.timing.benchmark import _RunScope
from tests.support.shells import Ran


@pytest.fixture(autouse=True)
def _collecting() -> Iterator[None]:
    assert gc.isenabled()
    yield
    gc.enable()


def interrupted(*_: Any) -> Any:
    raise KeyboardInterrupt


def just_disabled() -> None:
    gc.disable()
    raise KeyboardInterrupt


@pytest.mark.parametrize("point", ["just disabled", "before the end", "at the end"])
def test_an_interrupt_leaves_the_collector_on(monkeypatch: pytest.MonkeyPatch, point: str) -> None:
    if point == "just disabled":
        ours = SimpleNamespace(isenabled=gc.isenabled, enable=gc.enable, disable=just_disabled)
        monkeypatch.setattr(benchmark, "gc", ours)
    elif point == "before the end":
        monkeypatch.setattr(_RunScope, "__exit__", interrupted)
    else:
        monkeypatch.setattr(_RunScope, "_turn_gc_on", interrupted)
    with pytest.raises(KeyboardInterrupt):
        gpumagic.cudatime("1 + 1", n=1, r=1, w=0)
    assert gc.isenabled()


def test_a_user_who_has_it_off_keeps_it_off() -> None:
    gc.disable()
    gpumagic.cudatime("1 + 1", n=1, r=1, w=0)
    assert not gc.isenabled()


def test_a_cold_cell_that_fails_keeps_no_memory(ip: Any, run_cell: Callable[..., Ran]) -> None:
    import torch

    ip.user_ns["x"] = torch.empty(1, device="cuda")
    before = torch.cuda.memory_allocated()
    ran = run_cell("%%cudatime -q --cold -r 3\n1 / 0", raising=False)
    assert isinstance(ran.error, ZeroDivisionError)
    assert torch.cuda.memory_allocated() == before
    timing = run_cell("%%cudatime -o -q --cold -n 1 -r 2\nx.add_(1)").value
    assert timing.quality.flushed
    assert torch.cuda.memory_allocated() == before
