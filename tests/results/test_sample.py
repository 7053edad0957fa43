"""Statistics of repeats."""

from __future__ import annotations

import statistics

import pytest

from gpumagic.results.sample import Sample

VALUES = (0.25, 0.5, 1.0, 2.0)


def test_statistics() -> None:
    sample = Sample(VALUES)
    assert (sample.best, sample.worst, sample.all) == (0.25, 2.0, VALUES)
    assert sample.median == 0.75
    assert sample.mean == pytest.approx(statistics.fmean(VALUES))
    assert sample.stdev == pytest.approx(statistics.pstdev(VALUES)), "of the whole, as %timeit's"
    assert sample.iqr == pytest.approx(1.25 - 0.4375)


def test_one_value_and_none() -> None:
    single = Sample((0.5,))
    assert (single.median, single.stdev, single.iqr) == (0.5, 0.0, 0.0)
    with pytest.raises(ValueError, match="at least one value"):
        Sample(())
