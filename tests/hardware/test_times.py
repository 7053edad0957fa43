"""What we promise of GPU time, on the real thing, in one process."""

from __future__ import annotations

import ctypes
import statistics
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

import pytest

import gpumagic
from gpumagic.cuda.pytorch import cuda_events, torch_cuda
from gpumagic.timing.repeated.queued_runs import launch_delay
from tests.hardware import work
from tests.hardware.record import Figure

pytestmark = [pytest.mark.hardware, pytest.mark.usefixtures("torch", "warmed")]


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


def test_what_two_events_tell_apart(torch: Any, figure: Figure) -> None:
    """Pairs of events with nothing in between: no two times differ by less than we say."""
    stream, pairs = torch_cuda.current_stream(0), []
    for _ in range(10):  # a queue holds some 1,000 events
        launch_delay(0, 20e-3)
        events = [cuda_events.timing_event(stream) for _ in range(200)]
        torch.cuda.synchronize()
        pairs += [a.elapsed_time(b) / 1e3 for a, b in zip(events[::2], events[1::2], strict=True)]
    steps = [b - a for a, b in pairwise(sorted(pairs)) if b - a > 1e-10]
    least, median, step = min(pairs), statistics.median(pairs), min(steps, default=0.0)
    figure("1,000 pairs of events, in seconds: least, median, step", (least, median, step))
    # A margin: times come as milliseconds in single precision.
    assert step <= cuda_events.RESOLUTION * 1.01


def test_work_on_a_stream_that_is_not_torchs(
    torch: Any, cycles: float, figure: Figure, real: bool
) -> None:
    """It ends after torch's own: the last synchronisation takes longer than nothing does."""
    if not real:
        pytest.skip("the virtual GPU is waited for without CPU time")
    from gpumagic.cuda import driver

    library, handle = driver.loaded_library(), ctypes.c_void_p()
    assert library is not None
    torch.cuda.synchronize()
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
    assert library.cuStreamDestroy_v2(handle) == 0


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
    torch: Any, cycles: float, run_cell: Callable[..., Any], ip: Any, figure: Figure
) -> None:
    """Per run, within 2 % of events written by hand around the same loop.

    The kernel takes longer than its launch: else two loops in Python would be compared.
    """
    ip.user_ns["kernel"] = kernel = partial(torch.cuda._sleep, int(50e-6 * cycles))
    ours, hand = [], []

    def loop() -> None:
        for _ in range(200):
            kernel()

    loop()
    for _ in range(9):
        hand.append(work.by_events(torch, loop) / 200)
        run_cell("%cudatime -n 200 -r 1 -w 200 -q -v timing kernel()")
        ours.append(ip.user_ns["timing"].gpu.median)
    ratio = statistics.median(ours) / statistics.median(hand)
    figure("a short kernel: seconds by hand", statistics.median(hand))
    figure("a short kernel: ours / by hand", ratio)
    assert ratio <= 1.02
