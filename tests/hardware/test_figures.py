"""What we promise of time and memory, on the real thing, in one process."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

import gpumagic
from gpumagic.memory.peaks import LEDGER

pytestmark = [pytest.mark.hardware, pytest.mark.usefixtures("torch")]

Figure = Callable[[str, Any], None]
MIB = 2**20


@pytest.fixture(scope="module")
def cycles(torch: Any) -> float:
    """Cycles of ``torch.cuda._sleep`` in a second, by events on an idle device."""
    torch.ones(1, device="cuda")
    counted = 100_000_000
    rates = []
    for _ in range(5):
        seconds = by_events(torch, lambda: torch.cuda._sleep(counted))
        rates.append(counted / seconds)
    return statistics.median(rates)


def by_events(torch: Any, code: Callable[[], Any]) -> float:
    """Seconds between two events around ``code``, on the current stream."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    start.record()
    code()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) / 1e3


def test_a_known_duration(torch: Any, cycles: float, figure: Figure) -> None:
    """50 ms on the current stream and on a side stream that nobody joins, within 2 %."""
    stream = torch.cuda.Stream()

    def current() -> None:
        torch.cuda._sleep(int(0.05 * cycles))

    def side() -> None:
        with torch.cuda.stream(stream):
            torch.cuda._sleep(int(0.05 * cycles))

    true = statistics.median(by_events(torch, current) for _ in range(5))
    for name, code in (("current stream", current), ("side stream", side)):
        ratios = []
        for _ in range(5):
            with gpumagic.cudatime() as timed:
                code()
            assert timed.gpu is not None
            ratios.append(timed.gpu.median / true)
        figure(f"50 ms on the {name}: reported / true", ratios)
        assert 0.98 <= statistics.median(ratios) <= 1.02


def test_two_devices_at_once(torch: Any, figure: Figure) -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("one GPU")

    def code(ordinal: int) -> None:
        with torch.cuda.device(ordinal):
            torch.cuda._sleep(50_000_000 * (ordinal + 1))

    true = []
    for ordinal in (0, 1):
        torch.ones(1, device=f"cuda:{ordinal}")
        with torch.cuda.device(ordinal):
            true.append(by_events(torch, lambda o=ordinal: code(o)))
    with gpumagic.cudatime() as timed:
        code(0)
        code(1)
    ratios = [timed.per_device[ordinal].median / true[ordinal] for ordinal in (0, 1)]
    figure("two devices at once: reported / true", ratios)
    assert all(0.98 <= ratio <= 1.02 for ratio in ratios)


def test_a_small_kernel_repeated(
    torch: Any, run_cell: Callable[..., Any], ip: Any, figure: Figure
) -> None:
    """Per run, within 2 % of events written by hand around the same loop."""
    x = torch.ones(256, 256, device="cuda")
    ip.user_ns["x"] = x
    ours, hand = [], []

    def loop() -> None:
        for _ in range(200):
            x.add_(1)

    loop()
    for _ in range(9):
        hand.append(by_events(torch, loop) / 200)
        run_cell("%cudatime -n 200 -r 1 -w 200 -q -v timing x.add_(1)")
        ours.append(ip.user_ns["timing"].gpu.median)
    ratio = statistics.median(ours) / statistics.median(hand)
    figure("a small kernel: seconds by hand", statistics.median(hand))
    figure("a small kernel: ours / by hand", ratio)
    assert ratio <= 1.02


@pytest.fixture
def ledger_released() -> Iterator[None]:
    """A script keeps the ledger of peaks; here it is taken back, as ``%unload_ext`` does."""
    yield
    LEDGER.release()


@pytest.mark.usefixtures("ledger_released")
def test_memory_is_exact(torch: Any, figure: Figure) -> None:
    """Change and peak of nested scopes, and the user's own peak, to the byte."""

    def bytes_(mib: int) -> Any:
        return torch.empty(mib * MIB, dtype=torch.uint8, device="cuda")

    bytes_(300)
    own = torch.cuda.max_memory_allocated()
    with gpumagic.gpumem() as outer:
        kept = bytes_(10)
        with gpumagic.gpumem() as inner:
            bytes_(200)
            more = bytes_(20)
    assert (outer.devices[0].allocated, outer.devices[0].peak) == (30 * MIB, 210 * MIB)
    assert (inner.devices[0].allocated, inner.devices[0].peak) == (20 * MIB, 200 * MIB)
    assert torch.cuda.max_memory_allocated() == own
    assert kept.numel() + more.numel() == 30 * MIB


def test_the_report_adds_up(torch: Any, figure: Figure) -> None:
    """The allocator's figures are torch's; the device's are NVML's, and agree with the driver's."""
    kept = torch.empty(100 * MIB, dtype=torch.uint8, device="cuda")
    report = gpumagic.gpumem().devices[0]
    free, total = torch.cuda.mem_get_info(0)
    figure("report", vars(report))
    figure("mem_get_info", (free, total))
    assert report.allocated == torch.cuda.memory_allocated(0) >= kept.numel()
    assert report.reserved == torch.cuda.memory_reserved(0)
    assert report.free is not None
    assert abs(report.free - free) <= 64 * MIB
    if report.outside is not None:
        assert report.outside > 0  # the context, at least


def test_a_warm_table_costs_little_more_than_nvml(torch: Any, figure: Figure) -> None:
    import pynvml as nv

    nv.nvmlInit()
    handles = [nv.nvmlDeviceGetHandleByIndex(i) for i in range(nv.nvmlDeviceGetCount())]

    def optional(call: Any, *arguments: Any) -> None:
        with suppress(nv.NVMLError):
            call(*arguments)

    def raw() -> None:
        for handle in handles[: nv.nvmlDeviceGetCount()]:
            optional(nv.nvmlDeviceGetMemoryInfo, handle, nv.nvmlMemory_v2)
            optional(nv.nvmlDeviceGetUtilizationRates, handle)
            optional(nv.nvmlDeviceGetTemperature, handle, nv.NVML_TEMPERATURE_GPU)
            optional(nv.nvmlDeviceGetPowerUsage, handle)
            optional(nv.nvmlDeviceGetEnforcedPowerLimit, handle)
            optional(nv.nvmlDeviceGetComputeRunningProcesses, handle)
            optional(nv.nvmlDeviceGetGraphicsRunningProcesses, handle)
            optional(nv.nvmlDeviceGetMigMode, handle)

    def table() -> None:
        gpumagic.devices(processes=False)

    def seconds(code: Callable[[], None]) -> float:
        begin = time.perf_counter()
        code()
        return time.perf_counter() - begin

    raw()
    table()
    turns = [(seconds(raw), seconds(table)) for _ in range(30)]
    raws, tables = (statistics.median(column) for column in zip(*turns, strict=True))
    nv.nvmlShutdown()
    figure("raw NVML calls of a table, seconds", raws)
    figure("gpumagic.devices(), seconds", tables)
    figure("gpumagic.devices() / raw NVML calls", tables / raws)
    if raws > 1e-3:  # the virtual NVML answers in microseconds, where Python is the larger part
        assert tables / raws <= 1.5
