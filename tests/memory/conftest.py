"""What the memory tests share: torch with an empty allocator, and a ledger that holds nothing."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from types import ModuleType

import pytest

MIB = 2**20


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """torch with contexts on cuda:0 and cuda:1, nothing allocated, and all counters at zero.

    A walk over a user's objects does not enter the tests' own modules and pytest's import hook,
    from which all objects of pytest are reached: it would visit ten times as many.
    """
    import torch

    from gpumagic.cells import tracebacks

    users = tracebacks.users_modules
    monkeypatch.setattr(
        tracebacks,
        "users_modules",
        lambda: {n: m for n, m in users().items() if n.partition(".")[0] != "tests"},
    )
    finders = [each for each in sys.meta_path if "_pytest" not in type(each).__module__]
    monkeypatch.setattr(sys, "meta_path", finders)
    for ordinal in (0, 1):
        torch.empty(1, device=f"cuda:{ordinal}")
    clear(torch)
    # What is there already is no test's garbage: the collector leaves it alone until the end.
    gc.freeze()
    yield torch
    gc.unfreeze()
    from gpumagic.memory.peak_ledger import LEDGER

    LEDGER.release()
    clear(torch)


def clear(torch: ModuleType) -> None:
    # What a test leaves is young; to collect everything takes 0.3 s where torch is loaded.
    for generation in (1, 2):
        gc.collect(generation)
        torch.cuda.empty_cache()
        if not any(torch.cuda.memory_reserved(ordinal) for ordinal in (0, 1)):
            break
    for ordinal in (0, 1):
        torch.cuda.reset_peak_memory_stats(ordinal)
        torch.cuda.reset_accumulated_memory_stats(ordinal)
        assert torch.cuda.memory_reserved(ordinal) == 0


@pytest.fixture
def all_objects(torch: ModuleType) -> None:
    """The collector knows all objects of the process again: for what looks through all of them."""
    gc.unfreeze()


@pytest.fixture(scope="session")
def with_stacks() -> None:
    """torch has told recorded stacks once: for that it imports a part of itself, which stays."""
    import torch

    torch.cuda.memory._record_memory_history(context="alloc", stacks="python", max_entries=100)
    torch.empty(1, device="cuda")
    torch.cuda.memory._snapshot()
    torch.cuda.memory._record_memory_history(enabled=None)
