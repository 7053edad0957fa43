"""What we say of GPU memory: exact to the byte, adding up, and clear when it runs out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import gpumagic
from gpumagic.memory import oom
from gpumagic.memory.peak_ledger import LEDGER
from gpumagic.results.holders import OutOfMemory
from tests.hardware.record import Figure
from tests.support.kernels import Kernel

pytestmark = [pytest.mark.hardware, pytest.mark.usefixtures("torch")]

MIB = 2**20


@pytest.fixture
def ledger_released() -> Iterator[None]:
    """A script keeps the ledger of peaks; here it is taken back, as ``%unload_ext`` does."""
    yield
    LEDGER._user.clear()
    LEDGER.leave()


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


@pytest.mark.usefixtures("without_mig")
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


def test_out_of_memory_is_read(torch: Any, ip: Any, figure: Figure) -> None:
    """The text of a real failure still says what is looked for in it."""
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(0.1)
    try:
        with pytest.raises(torch.OutOfMemoryError) as raised:
            torch.empty(total // 5, dtype=torch.uint8, device="cuda")
        found = oom.explain(raised.value, ip)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    figure("out of memory: torch's message", str(raised.value))
    assert isinstance(found, OutOfMemory)
    figure("out of memory: what is made of it", vars(found))
    assert found.requested == pytest.approx(total // 5, rel=0.01)
    assert found.device == 0
    assert found.free is not None
    assert found.limit is not None


def test_memory_is_told_after_a_choice_that_came_too_late(
    kernel: Callable[..., Kernel], figure: Figure
) -> None:
    """The variable hides the GPU by then, but it is in use as before."""
    fresh = kernel()
    fresh.run("import gpumagic, torch; x = torch.ones(9, device='cuda')")
    fresh.run("%gpu off -q")
    told = fresh.value("{i: d.allocated for i, d in gpumagic.gpumem().devices.items()}")
    fresh.run("with gpumagic.cudatime() as timed:\n    x.add_(1)")
    timed = fresh.value("(timed.gpu and timed.gpu.median, timed.gpu_note)")
    figure("after a choice that came too late: bytes allocated", told)
    figure("after a choice that came too late: GPU time of a kernel, note", timed)
    assert told.get(0)
