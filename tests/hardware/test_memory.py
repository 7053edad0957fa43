"""What NVML says of memory, and torch when it runs out."""

from __future__ import annotations

from typing import Any

import pytest

import gpumagic
from gpumagic.memory import oom
from gpumagic.results.memory.out_of_memory import OutOfMemory
from tests.hardware.record import Figure

pytestmark = [pytest.mark.hardware, pytest.mark.usefixtures("torch")]

MIB = 2**20


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
    assert found.requested == pytest.approx(total // 5, rel=0.01)
    assert found.device == 0
    assert found.free is not None
    assert found.limit is not None
