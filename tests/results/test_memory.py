"""The current GPU memory, and its change by a cell."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpumagic.results.base import as_text
from gpumagic.results.memory.memory_delta import DeviceMemoryDelta, MemoryDelta
from gpumagic.results.memory.memory_report import DeviceMemory, MemoryReport

GIB = 2**30
MIB = 2**20


def test_what_the_driver_reserves_is_not_in_use() -> None:
    row = DeviceMemory(free=15 * GIB, total=16 * GIB)
    assert "?" in as_text(MemoryReport({0: row}))
    shown = as_text(MemoryReport({0: replace(row, driver_reserved=GIB)}))
    assert "?" not in shown
    assert "15.0 GiB / 16.0 GiB" in shown
    told = "Reserved by the driver, in the total and not usable: "
    assert f"{told}1.00 GiB on cuda:0" in shown
    one, other = replace(row, driver_reserved=GIB), replace(row, driver_reserved=2 * GIB)
    assert f"{told}1.00 GiB on cuda:0; 2.00 GiB on cuda:1" in as_text(
        MemoryReport({0: one, 1: other})
    )


def test_pinned_memory() -> None:
    row = DeviceMemory(allocated=1, reserved=1)
    report = MemoryReport({0: row, 1: row}, pinned=4 * MIB, pinned_active=MIB, in_use=True)
    assert str(report).endswith("\nPinned host memory: 4.00 MiB, 1.00 MiB by live tensors")
    unknown = str(MemoryReport({0: row}, in_use=True))
    assert unknown.endswith("Pinned host memory: – (not counted by this torch)")
    none = as_text(MemoryReport({0: row}, pinned=0, pinned_active=0, in_use=True))
    assert "Pinned" not in none


def test_a_device_that_others_have_filled_is_not_empty() -> None:
    """Memory of unknown use is neither free nor counted to other processes."""
    full = DeviceMemory(free=2 * GIB, total=80 * GIB, others=78 * GIB, name="A")
    unknown = replace(full, others=None, name="B")
    lines = as_text(MemoryReport({0: full, 1: unknown}), 120).splitlines()
    assert lines[2].startswith("cuda:0  ░░░░░░░░░░░░░░░  ! 2.00 GiB / 80.0 GiB")
    assert lines[3].startswith("cuda:1  ???????????????  ! 2.00 GiB / 80.0 GiB")
    assert lines[-1] == "░ other processes  ? in use, not known by what"


def test_in_a_list_it_shows_its_figures() -> None:
    delta = MemoryDelta({0: DeviceMemoryDelta(2**20, 0, 2**21, 2**22)})
    assert repr([delta]) == (
        "[<MemoryDelta: GPU memory: cuda:0 +1.00 MiB, peak +2.00 MiB, now 4.00 MiB>]"
    )
    assert repr(MemoryDelta(error="no GPU")).endswith("not measured, no GPU>")
    assert repr(MemoryDelta()) == "<MemoryDelta: GPU memory: no change>"


def test_a_dataframe_has_a_row_for_each_device() -> None:
    pytest.importorskip("pandas")
    deltas = MemoryDelta({each: DeviceMemoryDelta(each, 0, each) for each in (0, 3)}).to_pandas()
    assert (deltas.index.name, [*deltas.peak]) == ("device", [0, 3])
    report = MemoryReport({each: DeviceMemory(free=each, peak=None) for each in (0, 3)}).to_pandas()
    assert [*report.free] == [0, 3]
    for empty in (MemoryDelta(error="no GPU").to_pandas(), MemoryReport().to_pandas()):
        assert not len(empty)
        assert "allocated" in empty
