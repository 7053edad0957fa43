"""Several timings compared: the table, the picture, the data."""

from __future__ import annotations

import pytest

from gpumagic.results import Compared, Comparison
from gpumagic.results.base import as_text
from tests.results.examples import compared


def test_a_ratio_that_rounds_to_one_is_the_same() -> None:
    base = Compared("a", compared(0.010, 0.011))
    near = Compared("b", compared(0.010, 0.011), 1.001, (1.0005, 1.002), "slower")
    wide = Compared("c", compared(0.010, 0.011), 0.999, (0.9, 1.1), "noise")
    lines = as_text(Comparison((base, near, wide), "gpu"), 200).splitlines()
    assert " same  " in lines[3]
    assert "1.00" not in lines[3]
    assert "within the noise (0.90–1.10)" in lines[4]


@pytest.mark.parametrize(
    ("ratio", "colour"), [(1.0149, ""), (1.0151, "warn"), (1 / 1.0151, "good")]
)
def test_a_ratio_is_coloured_by_what_is_shown_of_it(ratio: float, colour: str) -> None:
    verdict = "slower" if ratio > 1 else "faster"
    entry = Compared("b", compared(0.010, 0.011), ratio, (ratio - 0.001, ratio + 0.001), verdict)
    (grid,) = Comparison((Compared("a", compared(0.010, 0.011)), entry), "gpu")._blocks()
    cell = grid.rows[1][2]
    assert (cell.style, cell.text[:5]) == (colour or "dim", "1.02×" if colour else "1.01×")
