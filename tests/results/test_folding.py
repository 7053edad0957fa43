"""Which lines of a source have a row in a table."""

from __future__ import annotations

import pytest

from gpumagic.results.lines import folded


@pytest.mark.parametrize(
    ("numbers", "relevant", "shown"),
    [
        (range(1, 4), {2}, [1, 2, 3]),
        (range(1, 10), {9}, [*range(1, 10)]),  # eight lines in a row are shown
        (range(1, 11), {10}, [1, 2, range(3, 8), 8, 9, 10]),
        (range(1, 11), {1}, [1, 2, 3, range(4, 9), 9, 10]),
        (range(5, 25), {14}, [5, 6, range(7, 12), *range(12, 17), range(17, 23), 23, 24]),
        (range(1, 3), {7}, [1, 2]),
        (range(0), {7}, []),
    ],
)
def test_lines_without_figures_are_folded(
    numbers: range, relevant: set[int], shown: list[int | range]
) -> None:
    found = folded(numbers, relevant)
    assert [each.start if len(each) == 1 else each for each in found] == shown
