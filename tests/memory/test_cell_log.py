"""The records of cells: a bounded list that knows how many it has forgotten."""

from __future__ import annotations

from gpumagic.memory.cell_log import MemoryLog
from gpumagic.results import CellMemory


def cell(number: int) -> CellMemory:
    return CellMemory(number=number, source=f"x = {number}", seconds=0.5, devices={}, failed=False)


def test_the_newest_records_are_kept() -> None:
    log = MemoryLog(kept=2)
    assert list(log.result({}, watching=False)) == []
    for number in (1, 2, 3, 4):
        log.add(cell(number))
    found = log.result({0: 100}, watching=True)
    assert [each.number for each in found] == [3, 4]
    assert (found.forgotten, found.limits, found.watching) == (2, {0: 100}, True)


def test_a_result_stays_as_it_was() -> None:
    log = MemoryLog()
    log.add(cell(1))
    found = log.result({}, watching=True)
    log.add(cell(2))
    assert len(found) == 1
