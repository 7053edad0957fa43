"""What we promise of GPU time, on the real thing, in one process."""

from __future__ import annotations

import ctypes
import statistics
from collections.abc import Callable
from typing import Any

import pytest

import gpumagic
from tests.hardware import work
from tests.hardware.record import Figure

pytestmark = [pytest.mark.hardware, pytest.mark.usefixtures("torch", "warmed")]


@pytest.fixture(scope="module")
def cycles(torch: Any) -> float:
    """Cycles of ``torch.cuda._sleep`` in a second, by events on an idle device."""
    work.spin(torch)
    counted = 100_000_000
    rates = []
    for _ in range(5):
        seconds = work.by_events(torch, lambda: torch.cuda._sleep(counted))
        rates.append(counted / seconds)
    return statistics.median(rates)


def test_a_known_duration(torch: Any, cycles: float, figure: Figure) -> None:
    """50 ms on the current stream and on a side stream that is not synchronised, within 2 %."""
    stream = torch.cuda.Stream()

    def current() -> None:
        torch.cuda._sleep(int(0.05 * cycles))

    def side() -> None:
        with torch.cuda.stream(stream):
            torch.cuda._sleep(int(0.05 * cycles))

    true = statistics.median(work.by_events(torch, current) for _ in range(5))
    for name, code in (("current stream", current), ("side stream", side)):
        ratios = []
        for _ in range(5):
            with gpumagic.cudatime() as timed:
                code()
            assert timed.gpu is not None
            ratios.append(timed.gpu.median / true)
        figure(f"50 ms on the {name}: reported / true", ratios)
        assert 0.98 <= statistics.median(ratios) <= 1.02


def test_inferred_an_event_behind_a_context_sees_every_stream(
    torch: Any, cycles: float, figure: Figure
) -> None:
    """``cuCtxRecordEvent``: also non-blocking streams, and a stream can wait for its event."""
    from gpumagic.cuda import driver
    from gpumagic.timing import context_event

    if not context_event.ContextEvent(0).record().known:
        figure("cuCtxRecordEvent", None)
        pytest.skip("the driver is older than CUDA 12.5")
    torch.cuda.synchronize()
    begin = torch.cuda.Event(enable_timing=True)
    begin.record()
    event = context_event.ContextEvent(0).record()
    torch.cuda.synchronize()
    late = begin.elapsed_time(event.end) - begin.elapsed_time(event.later)
    figure("an event behind an idle context: microseconds after a later event", [late * 1e3])
    assert not event.finishes_last(begin, 0.0), "an idle device is busy"
    library, handle = driver.loaded_library(), ctypes.c_void_p()
    assert library is not None
    assert library.cuStreamCreate(ctypes.byref(handle), 1) == 0
    stream = torch.cuda.ExternalStream(handle.value)
    ratios = []
    for seconds in (0.001, 0.008):
        for _ in range(5):
            with gpumagic.cudatime() as timed, torch.cuda.stream(stream):
                torch.cuda._sleep(int(seconds * cycles))
            assert timed.gpu is not None
            ratios.append(timed.gpu.median / seconds)
    figure("1 and 8 ms on a stream that is not torch's: reported / true", ratios)
    assert 0.98 <= statistics.median(ratios) <= 1.1
    with gpumagic.cudatime() as timed:
        sum(range(1000))
    assert timed.gpu is None
    assert library.cuStreamDestroy_v2(handle) == 0


def test_inferred_a_wait_of_the_context_delays_every_stream(
    torch: Any, cycles: float, figure: Figure
) -> None:
    """``cuCtxWaitEvent``: also a non-blocking stream that is not torch's, and one made later."""
    from gpumagic.cuda import driver
    from gpumagic.timing import context_event

    library = driver.loaded_library()
    assert library is not None
    handles = [ctypes.c_void_p(), ctypes.c_void_p()]
    assert library.cuStreamCreate(ctypes.byref(handles[0]), 1) == 0
    torch.cuda.synchronize()
    torch.cuda._sleep(int(0.05 * cycles))
    start = torch.cuda.Event(enable_timing=True)
    start.record()
    if not context_event.make_context_wait(0, start):
        figure("cuCtxWaitEvent", None)
        pytest.skip("the driver is older than CUDA 12.5")
    assert library.cuStreamCreate(ctypes.byref(handles[1]), 1) == 0
    begun = []
    for handle in handles:
        with torch.cuda.stream(torch.cuda.ExternalStream(handle.value)):
            torch.cuda._sleep(1000)
            begun.append(torch.cuda.Event(enable_timing=True))
            begun[-1].record()
    torch.cuda.synchronize()
    late = [start.elapsed_time(each) for each in begun]
    figure("work behind a wait of the context: milliseconds after its event", late)
    for handle in handles:
        assert library.cuStreamDestroy_v2(handle) == 0
    assert min(late) > 0


def test_two_devices_at_once(torch: Any, figure: Figure) -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("one GPU")

    def code(ordinal: int) -> None:
        with torch.cuda.device(ordinal):
            torch.cuda._sleep(50_000_000 * (ordinal + 1))

    true = []
    for ordinal in (0, 1):
        work.spin(torch, ordinal)
        with torch.cuda.device(ordinal):
            true.append(work.by_events(torch, lambda o=ordinal: code(o)))
    with gpumagic.cudatime() as timed:
        code(0)
        code(1)
    ratios = [timed.per_device[ordinal].median / true[ordinal] for ordinal in (0, 1)]
    figure("two devices at once: reported / true", ratios)
    assert all(0.98 <= ratio <= 1.02 for ratio in ratios)


def test_a_short_kernel_repeated(
    torch: Any, run_cell: Callable[..., Any], ip: Any, figure: Figure
) -> None:
    """Per run, within 2 % of events written by hand around the same loop.

    The kernel takes longer than its launch: else two loops in Python would be compared.
    """
    x = torch.ones(4096, 4096, device="cuda")
    ip.user_ns["x"] = x
    ours, hand = [], []

    def loop() -> None:
        for _ in range(200):
            x.add_(1)

    loop()
    for _ in range(9):
        hand.append(work.by_events(torch, loop) / 200)
        run_cell("%cudatime -n 200 -r 1 -w 200 -q -v timing x.add_(1)")
        ours.append(ip.user_ns["timing"].gpu.median)
    ratio = statistics.median(ours) / statistics.median(hand)
    figure("a short kernel: seconds by hand", statistics.median(hand))
    figure("a short kernel: ours / by hand", ratio)
    assert ratio <= 1.02
