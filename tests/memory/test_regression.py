"""Peaks are exact: more than allowed above the stored one fails."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpumagic.errors import RegressionError, SpecError
from gpumagic.memory.regression import against, check
from gpumagic.results import DeviceMemoryDelta, MemoryDelta


def peak(size: int, device: int = 0) -> MemoryDelta:
    return MemoryDelta({device: DeviceMemoryDelta(0, 0, size)})


def test_a_peak_beyond_the_allowance_fails() -> None:
    compared = against(peak(1100), peak(1000))
    check(compared, 0.1)
    assert compared.peaks == {0: (1100, 1000)}
    lines = [line.split() for line in str(compared).splitlines()]
    assert lines[-1] == ["cuda:0", "1.07", "KiB", "1000", "B", "+10.0", "%"]
    with pytest.raises(RegressionError, match=r"peak 1.08 KiB, stored 1000 B; allowed: 10 % more"):
        check(against(peak(1101), peak(1000)), 0.1)
    with pytest.raises(RegressionError, match=r"cuda:1: peak 1.00 KiB, stored 0 B"):
        check(against(peak(1024, device=1), peak(1000)), 0.1)

    with pytest.raises(RegressionError, match=r"; allowed: 0\.5 % more$"):
        check(against(peak(1101), peak(1000)), 0.005)

    size = 40 * 2**20
    with pytest.raises(RegressionError, match="peak 41,943,552 B, stored 41,943,040 B"):
        check(against(peak(size + 512), peak(size)), 0.0)


def test_nothing_to_compare() -> None:
    with pytest.raises(SpecError, match="this cell: it did not run to its end"):
        against(replace(peak(1), partial=True), peak(1))
    with pytest.raises(SpecError, match="the stored result: no GPU"):
        against(peak(1), MemoryDelta(error="no GPU"))
