"""What limits a cell: cells of which it is known, and cells of which it cannot be found out."""

from __future__ import annotations

from typing import Any

import pytest

import gpumagic
from tests.timing import bottleneck_cells as cells
from tests.virtual_gpu import SLEEP_CYCLES_PER_SECOND


@pytest.fixture
def namespace(gpu_work: Any) -> dict[str, Any]:
    return cells.namespace(SLEEP_CYCLES_PER_SECOND)


@pytest.mark.parametrize("name", cells.ALL)
def test_the_known_verdicts(name: str, namespace: dict[str, Any]) -> None:
    code, limit = cells.ALL[name]
    timing = gpumagic.cudatime(code, globals=namespace, max_time=0.3)
    assert timing.limited_by == limit, timing
    assert timing.limit_evidence
    assert not timing.gpu_at_most
    assert {"gpu": "GPU-bound", "host": "host-bound"}[limit] in str(timing)


def test_code_that_waits_has_no_verdict(namespace: dict[str, Any]) -> None:
    """A delay ends before the host has queued everything."""
    timing = gpumagic.cudatime("y = x + 1; y.sum().item()", globals=namespace, n=3, r=6)
    assert timing.limited_by is None
    assert timing.gpu_at_most
    assert timing.queued == 3, "the first one showed it"


def test_an_exception_of_a_queued_run_is_not_raised(namespace: dict[str, Any]) -> None:
    namespace["left"] = [*range(1 + 6)]
    timing = gpumagic.cudatime("left.pop(); x.add_(1)", globals=namespace, n=1, r=6, w=1)
    assert timing.repeat == 6
    assert timing.limited_by is None
