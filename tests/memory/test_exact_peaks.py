"""The ledger: exact figures of every scope, and unchanged counters for the user."""

from __future__ import annotations

import random
import threading
from types import ModuleType
from typing import Any

import pytest

from gpumagic.memory import exact_peaks
from gpumagic.memory.exact_peaks import LEDGER
from gpumagic.results.memory.memory_delta import DeviceMemoryDelta
from tests.support.allocator import MIB, clear, empty, functions, program, readings


def test_torchs_functions_are_restored_when_its_counters_have_caught_up(torch: ModuleType) -> None:
    own = functions(torch)
    empty(torch, 50 * MIB)
    scope = LEDGER.open()
    assert not own.items() & functions(torch).items()
    LEDGER.close(scope)
    # torch's own counter says 0, the user must be told 50 MiB: the wrappers stay.
    assert torch.cuda.max_memory_allocated() == 50 * MIB
    assert functions(torch) != own
    kept = [empty(torch, 50 * MIB), empty(torch, 30 * MIB)]
    assert torch.cuda.max_memory_allocated() == 80 * MIB
    assert all(now is own[name] for name, now in functions(torch).items())
    del kept


def test_a_wrapper_of_another_library_stays(torch: ModuleType) -> None:
    own = torch._C._cuda_memoryStats
    scope = LEDGER.open()
    ours = torch._C._cuda_memoryStats
    torch._C._cuda_memoryStats = lambda ordinal: ours(ordinal)
    theirs = torch._C._cuda_memoryStats
    LEDGER.close(scope)
    assert torch._C._cuda_memoryStats is theirs
    empty(torch, 5 * MIB)
    scope = LEDGER.open()
    empty(torch, 3 * MIB)
    assert LEDGER.close(scope)[0].peak == 3 * MIB
    assert torch.cuda.max_memory_allocated() == 5 * MIB
    torch._C._cuda_memoryStats = ours
    LEDGER._user.clear()
    LEDGER.leave()
    assert torch._C._cuda_memoryStats is own


@pytest.mark.parametrize("name", [*exact_peaks._READ, *exact_peaks._RESET])
def test_what_another_torch_may_take_is_passed_on(
    torch: ModuleType, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    if not hasattr(torch._C, name):
        pytest.skip("this torch has no such function")
    own, given = getattr(torch._C, name), []

    def of_another_torch(ordinal: int, *args: Any, **kwargs: Any) -> Any:
        given.append((args, kwargs))
        return own(ordinal)

    monkeypatch.setattr(torch._C, name, of_another_torch)
    scope = LEDGER.open()
    ours = getattr(torch._C, name)
    given.clear()
    assert type(ours(0, "more", named=1)) is type(own(0))
    assert given[-1] == (("more",), {"named": 1})
    LEDGER.close(scope)
    assert ours is not getattr(torch._C, name) is of_another_torch


def test_scopes_of_several_threads(torch: ModuleType) -> None:
    found: dict[int, DeviceMemoryDelta] = {}
    meet = threading.Barrier(2)

    def work(ordinal: int) -> None:
        for _ in range(20):
            empty(torch, 30 * MIB, ordinal)
            meet.wait()
            scope = LEDGER.open()
            empty(torch, (ordinal + 1) * MIB, ordinal)
            found[ordinal] = LEDGER.close(scope)[ordinal]
            assert found[ordinal].peak == (ordinal + 1) * MIB

    threads = [threading.Thread(target=work, args=(ordinal,)) for ordinal in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(found) == {0, 1}
    assert [torch.cuda.max_memory_allocated(i) for i in (0, 1)] == [30 * MIB, 30 * MIB]


# --- the same program, with and without ------------------------------------------------------


@pytest.mark.parametrize("seed", range(8))
def test_the_users_counters_are_what_they_would_have_been(torch: ModuleType, seed: int) -> None:
    alone, _ = program(torch, seed, lambda aside: None)
    del _
    clear(torch)
    scopes: list[Any] = []

    def with_scopes(aside: random.Random) -> None:
        if aside.random() < 0.4:
            scopes.append(LEDGER.open())
        if scopes and aside.random() < 0.3:
            LEDGER.close(scopes.pop(aside.randrange(len(scopes))))

    beside, held = program(torch, seed, with_scopes)
    for scope in scopes:
        LEDGER.close(scope)
    beside[-1] = readings(torch)
    del held
    assert len(alone) == len(beside)
    for without, within in zip(alone, beside, strict=True):
        assert without.keys() == within.keys()
        for key in without:
            assert without[key] == within[key], key


@pytest.mark.parametrize("seed", range(8))
def test_every_scope_is_exact_in_a_random_program(torch: ModuleType, seed: int) -> None:
    """Against a model: what is allocated after each step, at the steps of each scope."""
    rng = random.Random(seed)
    live: list[Any] = []
    open_scopes: list[tuple[Any, int, list[int]]] = []
    checked = 0
    for _ in range(200):
        action = rng.random()
        if action < 0.3:
            live.append(empty(torch, rng.randrange(1, 20 * MIB)))
        elif action < 0.6 and live:
            live.pop(rng.randrange(len(live)))
        elif action < 0.65:
            torch.cuda.reset_peak_memory_stats()
        elif action < 0.7:
            torch.cuda.empty_cache()
        elif action < 0.85:
            now = torch.cuda.memory_allocated()
            open_scopes.append((LEDGER.open(), now, [now]))
        elif open_scopes:
            scope, start, course = open_scopes.pop(rng.randrange(len(open_scopes)))
            change = LEDGER.close(scope)[0]
            assert change.allocated == torch.cuda.memory_allocated() - start
            assert change.peak == max(course) - start
            checked += 1
        for _, _, course in open_scopes:
            course.append(torch.cuda.memory_allocated())
    for scope, _, _ in open_scopes:
        LEDGER.close(scope)
    assert checked > 10
