"""The records of cells: bounded, with the number of those dropped."""

from __future__ import annotations

import pytest

from gpumagic.cells.records import CellRecords, first_line


def test_the_newest_records_stay() -> None:
    records: CellRecords[int] = CellRecords(most=2)
    assert [*records] == []
    for number in (1, 2):
        records.add(number)
    assert records.dropped == 0
    for number in (3, 4, 5):
        records.add(number)
    assert [*records] == [4, 5]
    assert records.dropped == 3


@pytest.mark.parametrize(
    ("source", "line"),
    [
        ("\n\n  x = 1  \ny = 2", "x = 1"),
        ("", ""),
        ("a" * 501, "a" * 499 + "…"),
        ("x\ry", "x"),
    ],
)
def test_first_line(source: str, line: str) -> None:
    assert first_line(source) == line
