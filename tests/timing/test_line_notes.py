"""What is said below the lines' times."""

from __future__ import annotations

import pytest

from gpumagic.cells.line_tracer import Line
from gpumagic.timing.line_notes import MeasuringCost, unknown_note
from gpumagic.timing.line_totals import Total

HOST = "; the host times of short lines are upper bounds"


@pytest.mark.parametrize(
    ("cost", "has_bounds", "expected"),
    [
        (MeasuringCost(0.02, 0.0), True, None),
        (MeasuringCost(0.1234, 0.0), True, "measuring the lines took 12.3 % of the wall time"),
        (
            MeasuringCost(0.5, 0.02),
            False,
            f"measuring the lines took 50 % of the wall time{HOST}",
        ),
        (
            MeasuringCost(1.5, 0.0),
            True,
            f"measuring the lines took 100 % of the wall time{HOST}, their ≤ may lack work below "
            "20 µs",
        ),
        (
            MeasuringCost(0.01, 0.03),
            True,
            "measuring the lines took at least 4 % of the wall time: before Python 3.12 the Python "
            "code that they call is slower with -f, in try, generators and await; their host times "
            "are upper bounds",
        ),
    ],
)
def test_what_measuring_took(cost: MeasuringCost, has_bounds: bool, expected: str | None) -> None:
    assert cost.note(has_bounds=has_bounds) == expected


@pytest.mark.parametrize(
    ("numbers", "expected"),
    [
        ([], None),
        ([3], "no GPU time of line 3: "),
        ([5, 3], "no GPU time of lines 3, 5: "),
        ([*range(2, 9)], "no GPU time of lines 2, 3, 4, 5, 6 and 2 more: "),
    ],
)
def test_which_lines_have_no_gpu_time(numbers: list[int], expected: str | None) -> None:
    def time(*, is_too_low: bool) -> object:
        return Total(256).result((), 1.0, unnamed=())._replace(is_too_low=is_too_low)

    times = {Line(0, 20): time(is_too_low=False)}
    times |= {Line(0, number): time(is_too_low=True) for number in numbers}
    note = unknown_note(times)  # type: ignore[arg-type]
    assert (note is None) is (expected is None)
    assert note is None or note.startswith(str(expected))
