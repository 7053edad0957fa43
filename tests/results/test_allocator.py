"""What torch's allocator was asked to do."""

from __future__ import annotations

from gpumagic.results.memory.fit import Fit, FitRun
from tests.results.examples import FIT_RUNS


def test_the_table() -> None:
    fit = Fit("batch", 60, FIT_RUNS, True, ("the cell ran 4 times",))
    lines = str(fit).splitlines()
    assert lines[0] == "batch = 60 is the largest that fits."
    assert [line.split() for line in lines[3:7]] == [
        ["1", "3.00", "MiB"],
        ["2", "4.00", "MiB"],
        ["60", "62.0", "MiB"],
        ["61", "✗", "out", "of", "memory"],
    ]
    assert lines[7:] == ["the cell ran 4 times"]


def test_what_is_not_exact_and_what_does_not_fit() -> None:
    unknown = str(Fit("batch", 60, FIT_RUNS[:3], False)).splitlines()[0]
    assert unknown == "batch = 60 is the largest value that ran; a larger one may fit."
    between = str(Fit("batch", 60, (*FIT_RUNS[:3], FitRun(99, None), FitRun(70, None)), False))
    assert between.splitlines()[0] == (
        "batch = 60 fits, 70 does not. The values between them were not tried."
    )
    ended = str(Fit("batch", 60, FIT_RUNS[:3], True)).splitlines()[0]
    assert ended == "batch = 60 fits: the end of the range."
    nothing = Fit("n", None, (FitRun(1, None),), False)
    assert str(nothing).splitlines()[0] == "n = 1 does not fit: memory ran out."
