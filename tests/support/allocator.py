"""torch with an empty allocator and a ledger that holds nothing, and what its counters say."""

from __future__ import annotations

import gc
import random
import sys
import threading
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest

MIB = 2**20
ALLOCATE = "torch.empty({}, dtype=torch.uint8, device='cuda:{}')"
#: The functions of ``torch._C`` that the ledger wraps.
FUNCTIONS = (
    "_cuda_memoryStats",
    "_cuda_resetPeakMemoryStats",
    "_accelerator_getDeviceStats",
    "_accelerator_resetPeakStats",
)


def says_what_is_saved(torch: ModuleType) -> bool:
    """Whether this torch says what autograd has saved: torch 2.6 does not, and less is known."""
    return hasattr(getattr(torch._C._autograd, "SavedTensor", None), "data")


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """torch with contexts on cuda:0 and cuda:1, nothing allocated, and all counters at zero.

    A walk over a user's objects does not enter the tests' own modules, pytest's import hook and
    the threads of pytest-xdist, from which all objects of pytest are reached: it would visit ten
    times as many.
    """
    import torch

    from gpumagic.cells import tracebacks

    users = tracebacks.users_modules
    monkeypatch.setattr(
        tracebacks,
        "users_modules",
        lambda: {n: m for n, m in users().items() if n.partition(".")[0] != "tests"},
    )
    frames, others = sys._current_frames, {*sys._current_frames()} - {threading.get_ident()}
    monkeypatch.setattr(
        sys, "_current_frames", lambda: {t: f for t, f in frames().items() if t not in others}
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
    from gpumagic.memory.exact_peaks import LEDGER

    LEDGER._user.clear()
    LEDGER.leave()
    clear(torch)
    gc.freeze()


def clear(torch: ModuleType) -> None:
    # What a test leaves is young; to collect everything takes 0.3 s where torch is loaded.
    for generation in (1, 2):
        gc.collect(generation)
        torch._C._cuda_clearCublasWorkspaces()  # those of torch 2.14 outlive their tensors
        torch.cuda.empty_cache()
        if not any(torch.cuda.memory_reserved(ordinal) for ordinal in (0, 1)):
            break
        gc.unfreeze()
    for ordinal in (0, 1):
        torch.cuda.reset_peak_memory_stats(ordinal)
        torch.cuda.reset_accumulated_memory_stats(ordinal)
    if any(torch.cuda.memory_reserved(ordinal) for ordinal in (0, 1)):
        gc.unfreeze()
        kinds = (torch.Tensor, torch.nn.Parameter)
        left = [each for each in gc.get_objects() if type(each) in kinds and each.is_cuda]
        held = [f"{tuple(each.shape)} on {each.device}" for each in left]
        # This test fails for it; those that follow do not.
        for tensor in left:
            tensor.untyped_storage().resize_(0)
        torch.cuda.empty_cache()
        raise AssertionError(f"memory of an earlier test is still reserved: {held}")


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


def empty(torch: ModuleType, size: int, ordinal: int = 0) -> Any:
    return torch.empty(size, dtype=torch.uint8, device=f"cuda:{ordinal}")


def fits(torch: ModuleType, size: int, ordinal: int = 0) -> bool:
    """Whether so many bytes more can be allocated."""
    try:
        empty(torch, size, ordinal)
    except torch.OutOfMemoryError:
        return False
    finally:
        torch.cuda.empty_cache()
    return True


def functions(torch: ModuleType) -> dict[str, Any]:
    return {name: getattr(torch._C, name) for name in FUNCTIONS if hasattr(torch._C, name)}


def bytes_on(ordinal: int, size: int) -> str:
    return ALLOCATE.format(size, ordinal)


def readings(torch: ModuleType) -> dict[str, Any]:
    """Everything that torch tells of the device counters, key by key, in every form."""
    found: dict[str, Any] = {}
    for form in (0, 1, "cuda:0", torch.device("cuda", 1), None):
        found[f"stats {form}"] = dict(torch.cuda.memory_stats(form))
        found[f"nested {form}"] = torch.cuda.memory_stats_as_nested_dict(form)
        found[f"allocated {form}"] = torch.cuda.max_memory_allocated(form)
        found[f"reserved {form}"] = torch.cuda.max_memory_reserved(form)
        found[f"summary {form}"] = torch.cuda.memory_summary(form)
        if hasattr(torch.accelerator, "memory_stats"):
            found[f"accelerator {form}"] = dict(torch.accelerator.memory_stats(form))
            found[f"accelerator peak {form}"] = torch.accelerator.max_memory_allocated(form)
    return found


def program(
    torch: ModuleType, seed: int, step: Callable[[random.Random], None]
) -> tuple[list[dict[str, Any]], list[Any]]:
    """A random program of allocations and resets; ``step`` is called between its steps.

    Returns what it read on its way, and what it holds at the end.
    """
    rng, aside = random.Random(seed), random.Random(seed + 1)
    live: list[Any] = []
    seen = []
    for _ in range(60):
        step(aside)
        action = rng.random()
        ordinal = rng.randrange(2)
        if action < 0.4:
            live.append(empty(torch, rng.choice((1, 700, MIB, 3 * MIB, 15 * MIB)), ordinal))
        elif action < 0.7 and live:
            live.pop(rng.randrange(len(live)))
        elif action < 0.75:
            torch.cuda.empty_cache()
        elif action < 0.8:
            torch.cuda.reset_peak_memory_stats(rng.choice((0, 1, None, "cuda:1")))
        elif action < 0.83 and hasattr(torch.accelerator, "reset_peak_memory_stats"):
            torch.accelerator.reset_peak_memory_stats(ordinal)
        elif action < 0.86:
            torch.cuda.reset_accumulated_memory_stats(ordinal)
        elif action < 0.89:
            with pytest.raises(torch.OutOfMemoryError):
                empty(torch, 2**50, ordinal)
        else:
            empty(torch, rng.randrange(1, 90 * MIB), ordinal)
        if rng.random() < 0.3:
            seen.append(readings(torch))
    seen.append(readings(torch))
    return seen, live
