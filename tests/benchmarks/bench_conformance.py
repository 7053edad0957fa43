"""``%%cudatime`` against ``%%time``: the cases in which both do the same."""

from __future__ import annotations

from collections.abc import Iterable

from tests.benchmarks.row import Row
from tests.magics.cudatime.conformance import BETTER, scores
from tests.support.shells import shell


def rows() -> Iterable[Row]:
    """The two scores, on the list that the tests run."""
    cases, passed = scores(shell)
    note = (
        f"the list of tests/magics/cudatime/conformance.py, {len(BETTER)} of it not as %%time does"
    )
    yield Row.equal("%%cudatime, conformance with %%time", passed["cudatime"], cases, "cases", note)
    yield Row.shown("%%time itself, the same list", passed["time"], cases, "cases", note)
