"""The report of lines and branches that no test reaches."""

from __future__ import annotations

from tests.tools import covered


def test_lines_and_branches_are_counted_apart() -> None:
    totals = {"covered_lines": 3, "num_statements": 4, "covered_branches": 0, "num_branches": 0}
    assert covered.percent({"totals": totals}) == {"lines": 75.0, "branches": 0.0}
