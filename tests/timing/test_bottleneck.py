"""What limits a cell: cells of which it is known, and cells of which it cannot be found out."""

from __future__ import annotations

from typing import Any

import pytest

import gpumagic
from gpumagic.timing.bottleneck import gpu_outlasts_host, judge, queued_loops
from tests.timing import bottleneck_cells as cells
from tests.virtual_gpu import SLEEP_CYCLES_PER_SECOND


@pytest.fixture
def namespace(gpu_work: Any) -> dict[str, Any]:
    return cells.namespace(SLEEP_CYCLES_PER_SECOND)


@pytest.mark.parametrize("name", cells.ALL)
def test_the_known_verdicts(name: str, namespace: dict[str, Any]) -> None:
    code, limit = cells.ALL[name]
    timing = gpumagic.cudatime(code, globals=namespace, max_time=0.3)
    assert timing.bound == limit, timing
    assert timing.bound_evidence
    assert timing.gpu_at_most == (limit == "host")
    assert {"gpu": "GPU-bound", "host": "host-bound"}[limit] in str(timing)


@pytest.mark.parametrize(
    ("part", "bound", "shown"),
    [(0.0049, "host", "< 1 %"), (0.5, "host", "50 %"), (0.85, None, ""), (0.95, "gpu", "95 %")],
)
def test_the_verdict_of_queued_runs(part: float, bound: str | None, shown: str) -> None:
    found, evidence = judge([part, part, 9.0], 1.0)
    assert found == bound
    assert shown in str(evidence)


def test_the_gpu_outlasts_the_host_in_most_runs() -> None:
    assert gpu_outlasts_host([1.0, 1.0, 1.0], [0.1, 0.2, 0.9])
    assert not gpu_outlasts_host([1.0, 1.0, 1.0], [0.1, 0.9, 0.9])
    assert not gpu_outlasts_host([], [])


def test_no_delay_lasts_longer_than_a_second() -> None:
    assert queued_loops(20e-6, 20e-6, 1000) == 50
    assert queued_loops(0.1, 0.1, 1) == 1
    assert queued_loops(2.0, 2.0, 1) == 0


def test_code_that_waits_has_no_verdict(namespace: dict[str, Any]) -> None:
    """A delay ends before the host has queued everything."""
    timing = gpumagic.cudatime("y = x + 1; y.sum().item()", globals=namespace, n=3, r=6)
    assert timing.bound is None
    assert timing.gpu_at_most


def test_an_exception_of_a_queued_run_is_not_raised(namespace: dict[str, Any]) -> None:
    namespace["left"] = [*range(1 + 6)]
    timing = gpumagic.cudatime("left.pop(); x.add_(1)", globals=namespace, n=1, r=6)
    assert timing.repeat == 6
    assert timing.bound is None
