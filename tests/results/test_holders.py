"""The variables that hold GPU memory."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpumagic.results.holders import Holders
from tests.results.examples import HELD, MODEL, holder

GIB = 2**30


def test_the_smallest_holders_are_summed_up() -> None:
    many = tuple(holder(f"x{i}", GIB) for i in range(20))
    shown = str(Holders({0: replace(HELD, allocated=20 * GIB, holders=many, unattributed=0)}))
    assert "x14" in shown
    assert "x15" not in shown
    assert "5 more" in shown


def test_a_holder_by_its_name() -> None:
    assert HELD["model"] is MODEL
    with pytest.raises(KeyError):
        _ = HELD["x"]
