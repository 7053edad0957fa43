"""The variables that hold GPU memory."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpumagic.results.memory.holders import Holders
from tests.results.examples import HELD, holder

GIB = 2**30


def test_the_smallest_holders_are_summed_up() -> None:
    many = tuple(holder(f"x{i}", GIB) for i in range(20))
    shown = str(Holders({0: replace(HELD, allocated=20 * GIB, holders=many, unattributed=0)}))
    assert "x14" in shown
    assert "x15" not in shown
    assert "5 more" in shown


def test_a_variable_without_a_row_is_explained() -> None:
    why = "Also held by: what several variables hold is counted once"
    alone = replace(HELD, holders=(holder("x", GIB),))
    assert why not in str(Holders({0: alone}))
    shared = replace(HELD, holders=(replace(holder("x", GIB), also=("same",)),))
    assert why in str(Holders({0: shared}))


def test_a_long_name_takes_nothing_from_the_other_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    name = "activations_of_the_first_layer (In[2] line 3 in a_function_with_a_long_name)"
    rows = tuple(replace(holder(each, GIB), also=("model",)) for each in ("short", name))
    lines = str(Holders({0: replace(HELD, holders=rows)})).splitlines()
    assert all(column in lines[0] for column in ("Kind", "Blocks", "Frees", "Also held by"))
    assert "█" in next(line for line in lines if line.startswith("short"))
    assert "…" not in next(line for line in lines if line.startswith("activations"))
    assert any("In[2]" in line for line in lines), "it is broken, not cut"
