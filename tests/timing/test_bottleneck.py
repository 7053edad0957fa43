"""What limits a cell: cells of which it is known, and cells of which it cannot be found out."""

from __future__ import annotations

import time
from typing import Any

import pytest

import gpumagic
from gpumagic.timing.bottleneck import judge
from gpumagic.timing.launch_overhead import QueuedSampling
from tests.timing import bottleneck_cells as cells

MANY = {"precision": 0.05, "max_time": 0.3}


@pytest.mark.parametrize("name", cells.ALL)
def test_the_known_verdicts(name: str, namespace: dict[str, Any]) -> None:
    code, limit = cells.ALL[name]
    timing = gpumagic.cudatime(code, globals=namespace, **MANY)
    assert timing.bound == limit, timing
    assert timing.bound_evidence
    assert timing.gpu_at_most == (limit == "host")
    assert {"gpu": "GPU-bound", "host": "host-bound"}[limit] in str(timing)


def test_the_verdict_is_of_one_loop() -> None:
    """Runs of ten loops, 1 s each; the queued samples are of one loop."""
    sampling = QueuedSampling(0, 0.1, 0.1, 1)
    sampling.samples = [0.095] * 5
    assert judge([1.0] * 5, [1.0] * 5, 10, sampling)[0] == "gpu"
    sampling.samples = [0.05] * 5
    assert judge([1.0] * 5, [1.0] * 5, 10, sampling)[0] == "host"


def test_a_run_shorter_than_the_gpu_needs_does_not_decide() -> None:
    """The verdict agrees with the medians that are shown."""
    sampling = QueuedSampling(0, 16e-6, 15e-6, 100)
    sampling.samples = [8.4e-6] * 5
    gpu, host = [4e-3, 15e-3, 16e-3, 17e-3, 38e-3], [3e-3, 14e-3, 15e-3, 16e-3, 37e-3]
    bound, evidence = judge(gpu, host, 1000, sampling)
    assert bound == "host"
    assert evidence == "with launch cost hidden, the GPU takes 52 % of its median time as run"


@pytest.mark.parametrize(
    ("sample", "part"), [(0.5, "50 %"), (0.006, "1 %"), (0.0049, "< 1 %"), (0.0151, "2 %")]
)
def test_a_small_share_is_not_nothing(sample: float, part: str) -> None:
    sampling = QueuedSampling(0, 0.1, 0.1, 1)
    sampling.samples = [sample] * 5
    _, evidence = judge([1.0] * 5, [1.0] * 5, 1, sampling)
    assert evidence == f"with launch cost hidden, the GPU takes {part} of its best time as run"


def test_the_number_of_known_cells() -> None:
    assert len(cells.HOST_BOUND) == len(cells.GPU_BOUND) == 10


def test_a_given_number_of_runs_is_exact(namespace: dict[str, Any]) -> None:
    """The warm-up serves as the queued samples then."""
    namespace["runs"] = runs = []
    timing = gpumagic.cudatime("runs.append(1); x.add_(1)", n=3, r=4, w=8, globals=namespace)
    assert len(runs) == 8 + 3 * 4
    assert timing.warmup == 8
    assert timing.bound == "host"


def test_without_warm_up_only_the_runs_are_judged(namespace: dict[str, Any]) -> None:
    namespace["runs"] = runs = []
    timing = gpumagic.cudatime("runs.append(1); x.add_(1)", n=3, r=4, w=0, globals=namespace)
    assert len(runs) == 12
    assert timing.bound is None
    assert timing.queued is None
    timing = gpumagic.cudatime("sleep(2e-3)", n=3, r=4, w=0, globals=namespace)
    assert timing.bound == "gpu"


def test_no_gpu_work_is_noted(gpu_work: Any) -> None:
    timing = gpumagic.cudatime(lambda: time.sleep(1e-4), **MANY)
    assert timing.gpu is None
    assert timing.gpu_note == "no GPU time: no sign of GPU work was seen"
    assert timing.bound is None
