"""``%%gpumem``: exact figures, what they cost, and what a polling sampler sees instead."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from tests.benchmarks.row import Row

MIB = 2**20


def rows() -> Iterable[Row]:
    """The rows of the memory benchmarks. Needs a GPU, real or virtual."""
    import torch

    torch.empty(1, device="cuda")
    yield from _nested(torch)
    yield from _sampler(torch)
    yield from _cost(torch)
    yield from _parking(torch)


def _empty(torch: Any, size: int) -> Any:
    return torch.empty(size, dtype=torch.uint8, device="cuda")


def _nested(torch: Any) -> Iterator[Row]:
    """Three levels, each with memory that stays and memory that comes and goes."""
    from gpumagic.memory.measurement import Measurement

    _empty(torch, 700 * MIB)  # an older peak, higher than everything below
    own = torch.cuda.max_memory_allocated()
    kept = []
    with Measurement() as outer:
        _empty(torch, 500 * MIB)
        kept.append(_empty(torch, 10 * MIB))
        with Measurement() as middle:
            _empty(torch, 300 * MIB)
            kept.append(_empty(torch, 20 * MIB))
            with Measurement() as inner:
                _empty(torch, 100 * MIB)
                kept.append(_empty(torch, 30 * MIB))
    known = {
        "outer": (outer, 60 * MIB, 500 * MIB),
        "middle": (middle, 50 * MIB, 300 * MIB),
        "inner": (inner, 30 * MIB, 100 * MIB),
    }
    for level, (measured, change, peak) in known.items():
        found = measured.devices[0]
        note = "known allocations"
        yield Row.equal(
            f"%%gpumem, {level} of 3 levels: change", found.allocated, change, note=note
        )
        yield Row.equal(f"%%gpumem, {level} of 3 levels: peak", found.peak, peak, note=note)
    yield Row.equal(
        "max_memory_allocated() after them",
        torch.cuda.max_memory_allocated(),
        own,
        note="before them",
    )
    torch.cuda.reset_peak_memory_stats()


def _sampler(torch: Any) -> Iterator[Row]:
    """A peak that lasts microseconds, against `memory_allocated` polled every 10 ms."""
    from gpumagic.memory.measurement import Measurement

    start = torch.cuda.memory_allocated()
    seen = [start]
    stop = threading.Event()

    def poll() -> None:
        while not stop.wait(0.010):
            seen.append(torch.cuda.memory_allocated())

    sampler = threading.Thread(target=poll)
    with Measurement() as measured:
        sampler.start()
        for size in (200, 400, 300):
            _empty(torch, size * MIB)
            time.sleep(0.05)
        stop.set()
        sampler.join()
    yield Row.equal(
        "%%gpumem, peak of a cell that allocates and frees",
        measured.devices[0].peak,
        400 * MIB,
        note=f"known; a thread that polls every 10 ms saw {(max(seen) - start) / MIB:.0f} MiB",
    )


def _cost(torch: Any) -> Iterator[Row]:
    from gpumagic.cuda import torch_cuda
    from gpumagic.memory.measurement import Measurement
    from gpumagic.memory.peak_ledger import LEDGER

    for ordinal in range(torch.cuda.device_count()):
        torch.empty(1, device=f"cuda:{ordinal}")
    used = torch_cuda.contexts()
    LEDGER.release()  # so that this is torch's own function
    read = torch._C._cuda_memoryStats

    def raw() -> None:
        for _ in (1, 2):
            for ordinal in used:
                read(ordinal)

    def idle() -> None:
        with Measurement():
            pass

    def after_a_peak() -> None:
        for ordinal in used:
            torch.empty(1, device=f"cuda:{ordinal}")
        with Measurement():
            pass

    def peak_alone() -> None:
        for ordinal in used:
            torch.empty(1, device=f"cuda:{ordinal}")

    def flat() -> None:
        for ordinal in used:
            torch.cuda.memory_stats(ordinal)

    took = _in_turns(raw, idle, after_a_peak, peak_alone, flat)
    name = f"%%gpumem scope, {len(used)} device{'' if len(used) == 1 else 's'}"
    note = f"{2 * len(used)} raw readings of the counters, which it needs"
    yield Row.shown(f"{name}, idle", took[idle], took[raw], note=note)
    busy = took[after_a_peak] - took[peak_alone]
    yield Row.shown(f"{name}, after a peak", busy, took[raw], note=note)
    note = "one torch.cuda.memory_stats() a device"
    yield Row.shown(f"{name}, idle", took[idle], took[flat], note=note)


def _parking(torch: Any) -> Iterator[Row]:
    """GiB/s to the host and back, beside plain copies of the same bytes."""
    from gpumagic.memory.parking import PARKING

    size = 512 * MIB
    tensor = torch.zeros(size, dtype=torch.uint8).cuda()
    parked, back = PARKING.park(), PARKING.bring_back()
    started = time.perf_counter()
    host = tensor.cpu()
    plain_out = time.perf_counter() - started
    started = time.perf_counter()
    tensor.copy_(host)
    torch.cuda.synchronize()
    plain_in = time.perf_counter() - started
    gib = size / 2**30
    for name, ours, plain in (
        ("%gpumem park", parked.seconds, plain_out),
        ("%gpumem unpark", back.seconds, plain_in),
    ):
        note = f"one plain copy of the same {size // MIB} MiB"
        yield Row.shown(f"{name}, 512 MiB", gib / ours, gib / plain, unit="GiB/s", note=note)


def _in_turns(*functions: Callable[[], None], turns: int = 40) -> dict[Callable[[], None], float]:
    """Seconds of a call of each: the best of many turns of 10 calls."""
    best = dict.fromkeys(functions, float("inf"))
    for _ in range(turns):
        for function in functions:
            started = time.perf_counter()
            for _ in range(10):
                function()
            best[function] = min(best[function], (time.perf_counter() - started) / 10)
    return best
