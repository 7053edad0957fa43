"""``%%cudatime``: known durations, and a small kernel against events written by hand."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from tests.benchmarks.row import Row

#: Seconds that the known work takes.
TRUE = 0.05
SHORTER = 0.02
LOOPS, REPEATS = 200, 9

#: When each device was given its work last, on `time.perf_counter`'s clock.
_queued: dict[int, float] = {}


def rows() -> Iterable[Row]:
    """The rows of the timing benchmarks. Needs two GPUs, real or virtual."""
    import torch

    for ordinal in (0, 1):
        torch.empty(1, device=f"cuda:{ordinal}")
    yield from _known(torch)
    yield from _peers(torch)
    yield from _small(torch)


def _spin(torch: Any, seconds: float, device: int = 0) -> None:
    """Work that takes so long on the device, and no time on the host."""
    from tests.virtual_gpu import SLEEP_CYCLES_PER_SECOND

    with torch.cuda.device(device):
        _queued[device] = time.perf_counter()
        torch.cuda._sleep(int(seconds * SLEEP_CYCLES_PER_SECOND))


def _on_side(torch: Any) -> None:
    with torch.cuda.stream(torch.cuda.Stream(0)):
        _spin(torch, TRUE)


def _from_thread(torch: Any) -> None:
    thread = threading.Thread(target=_on_side, args=(torch,))
    thread.start()
    thread.join()


def _both(torch: Any) -> None:
    _spin(torch, TRUE, 0)
    _spin(torch, SHORTER, 1)


def _known(torch: Any) -> Iterator[Row]:
    """Single runs of work whose duration is known."""
    import gpumagic

    cases: tuple[tuple[str, Callable[[Any], None], dict[int, float]], ...] = (
        ("on the current stream", lambda t: _spin(t, TRUE), {0: TRUE}),
        ("on an unjoined side stream", _on_side, {0: TRUE}),
        ("on another device", lambda t: _spin(t, TRUE, 1), {1: TRUE}),
        ("from another thread", _from_thread, {0: TRUE}),
        ("on two devices at once", _both, {0: TRUE, 1: SHORTER}),
    )
    for name, code, true in cases:
        with gpumagic.cudatime() as timed:
            begun = time.perf_counter()
            code(torch)
        for ordinal, seconds in true.items():
            sample = timed.per_device.get(ordinal)
            # A busy machine takes a while to start a thread: from the start until it is done.
            late = _queued[ordinal] - begun
            yield Row.within(
                f"%%cudatime, {seconds * 1e3:.0f} ms {name}: cuda:{ordinal}",
                sample.median if sample else float("nan"),
                late + seconds,
                0.98,
                1.02,
                note=f"true duration, queued {late * 1e6:.0f} µs after the start",
            )


def _peers(torch: Any) -> Iterator[Row]:
    """What others say of the side stream."""
    from torch.utils.benchmark import Timer

    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    start.record()
    _on_side(torch)
    end.record()
    end.synchronize()
    by_hand = start.elapsed_time(end) / 1e3
    torch.cuda.synchronize()
    begin = time.time()
    _on_side(torch)
    wall = time.time() - begin
    torch.cuda.synchronize()
    timer = Timer("code(torch)", globals={"code": _on_side, "torch": torch})
    for name, seconds in (
        ("an event pair on the current stream", by_hand),
        ("%%time's wall time", wall),
        ("torch.utils.benchmark", timer.timeit(3).median),
    ):
        yield Row.shown(f"{name}, 50 ms on a side stream", seconds, TRUE, note="true duration")


def _small(torch: Any) -> Iterator[Row]:
    """A kernel of 20 µs in a loop: ours and hand-written events in turn, on the same machine."""
    from gpumagic.cells.timeit_loop import compile_callable
    from gpumagic.timing.benchmark import Benchmark
    from gpumagic.timing.plan import Plan

    def kernel() -> None:
        _spin(torch, 20e-6)

    loop = compile_callable(kernel)
    ours, by_hand, walls = [], [], []
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for _ in range(REPEATS):
        benchmark = Benchmark(loop, Plan(LOOPS, 1, LOOPS))
        benchmark.run()
        result = benchmark.result()
        assert result is not None
        assert result.gpu is not None
        ours.append(result.gpu.median)

        for _ in range(LOOPS):
            kernel()
        torch.cuda.synchronize()
        start.record()
        for _ in range(LOOPS):
            kernel()
        end.record()
        end.synchronize()
        by_hand.append(start.elapsed_time(end) / 1e3 / LOOPS)

        begin = time.time()
        kernel()
        walls.append(time.time() - begin)
        torch.cuda.synchronize()
    reference = statistics.median(by_hand)
    yield Row.at_most(
        "%%cudatime -n 200, a 20 µs kernel",
        statistics.median(ours),
        reference,
        1.02,
        note="hand-written events",
    )
    from torch.utils.benchmark import Timer

    timer = Timer("kernel()", globals={"kernel": kernel})
    peers = {
        "torch.utils.benchmark, the same kernel": timer.timeit(LOOPS).median,
        "%%time's wall time, the same kernel": statistics.median(walls),
    }
    for name, seconds in peers.items():
        yield Row.shown(name, seconds, reference, note="hand-written events")
