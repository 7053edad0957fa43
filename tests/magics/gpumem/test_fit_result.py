"""The largest value that fits; its other sentences: ``test_fit.py``."""

from __future__ import annotations

from gpumagic.magics.gpumem.fit_result import Fit
from tests.results.examples import FIT_RUNS


def test_the_runs_are_shown_by_value() -> None:
    fit = Fit("batch", 60, FIT_RUNS[::-1], True, ("the cell ran 4 times",))
    lines = str(fit).splitlines()
    assert lines[0] == "batch = 60 fits, 61 does not."
    assert [line.split()[0] for line in lines[3:7]] == ["1", "2", "60", "61"]
    assert lines[6].endswith("✗ out of memory")
    assert lines[7:] == ["the cell ran 4 times"]
    assert str(Fit("batch", 60, FIT_RUNS[:3], True)).startswith("batch = 60 fits: the end of the ")
