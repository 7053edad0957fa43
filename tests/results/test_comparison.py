"""Several timings compared: the table."""

from __future__ import annotations

from gpumagic.results.base import as_text
from gpumagic.results.comparison import Compared, Comparison
from tests.results.examples import compared


def test_a_ratio_that_rounds_to_one_is_the_same() -> None:
    base = Compared("a", compared(0.010, 0.011))
    near = Compared("b", compared(0.010, 0.011), 1.001, (1.0005, 1.002), "slower")
    wide = Compared("c", compared(0.010, 0.011), 0.999, (0.9, 1.1), "noise")
    lines = as_text(Comparison((base, near, wide), "gpu"), 200).splitlines()
    assert " same  " in lines[3]
    assert "within the noise (0.90–1.10)" in lines[4]
