"""``gpumagic.gpumem`` from a script: report, ``with``, decorator, statement."""

from __future__ import annotations

import dataclasses
import json
from types import ModuleType
from typing import Any

import pytest

import gpumagic
from tests.support.allocator import MIB, empty


def test_a_report_with_the_change_since_the_last(torch: ModuleType) -> None:
    gpumagic.gpumem()
    keep = empty(torch, 2 * MIB)
    row = gpumagic.gpumem().devices[0]
    assert row.allocated == row.allocated_change == 2 * MIB
    report = gpumagic.gpumem()
    assert report.devices[0].allocated_change == 0
    assert json.loads(report.to_json())["devices"]["0"]["allocated"] == 2 * MIB
    del keep


def test_a_report_has_all_that_the_magic_shows(torch: ModuleType, ip: Any, run_cell: Any) -> None:
    pinned = torch.empty(MIB, dtype=torch.uint8, pin_memory=True)
    report, shown = gpumagic.gpumem(), run_cell("%gpumem -o -q").value
    assert report.in_use
    for each in dataclasses.fields(gpumagic.MemoryReport):
        if each.name != "devices":  # with the change since another report
            assert getattr(report, each.name) == getattr(shown, each.name), each.name
    assert (report.pinned is None) == (gpumagic.cuda.pytorch.allocator.pinned_memory() is None)
    del pinned


def test_a_report_is_a_context_manager_too(torch: ModuleType) -> None:
    empty(torch, 90 * MIB)
    with gpumagic.gpumem() as m:
        empty(torch, 30 * MIB)
        with gpumagic.gpumem() as inner:
            keep = empty(torch, 5 * MIB)
    assert (m.devices[0].allocated, m.devices[0].peak) == (5 * MIB, 30 * MIB)
    assert (inner.devices[0].allocated, inner.devices[0].peak) == (5 * MIB, 5 * MIB)
    assert not m.partial
    assert m.error is None
    assert str(m) == str(m.result)
    assert m.to_dict() == m.result.to_dict()
    del keep


def test_a_function(torch: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    @gpumagic.gpumem
    def step() -> None:
        empty(torch, 3 * MIB)

    step()
    assert step.memory.devices[0].peak == 3 * MIB
    assert step.memory.devices[0].allocated == 0
    assert "+3.00 MiB" in capsys.readouterr().out


def test_a_statement(torch: ModuleType) -> None:
    space: dict[str, Any] = {"torch": torch}
    change = gpumagic.gpumem("x = torch.empty(1, device='cuda')", globals=space)
    assert change.devices[0].allocated == 512
    assert "x" in space
