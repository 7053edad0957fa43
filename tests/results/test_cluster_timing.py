"""The times of a cell on the engines of a cluster."""

from __future__ import annotations

from typing import Any

import pytest

from gpumagic.results import ClusterTiming, CudaTiming, EngineTiming, Sample
from gpumagic.results.base import as_text
from tests.results.examples import CLUSTER_TIMING


def timing(seconds: float, **fields: Any) -> CudaTiming:
    sample = Sample((seconds,))
    return CudaTiming(**{"gpu": sample, "wall": sample, "cpu": sample, **fields})


def test_times_as_data() -> None:
    """A partial time is not compared."""
    assert CLUSTER_TIMING.gpu == Sample((1.0, 2.0))
    assert CLUSTER_TIMING.failed == {2: "KeyboardInterrupt", 3: "the engine has died"}
    assert CLUSTER_TIMING.slowest is CLUSTER_TIMING.straggler is CLUSTER_TIMING.engines[1]
    assert CLUSTER_TIMING.host_bound == (1,)
    assert repr(CLUSTER_TIMING) == "<ClusterTiming: 4 engines, median 1.5 s>"
    assert repr(ClusterTiming()) == "<ClusterTiming: 0 engines, ->"
    pytest.importorskip("pandas")
    assert CLUSTER_TIMING.to_pandas().loc[1, "gpu_time"] == 2.0


def test_of_many_engines_the_slowest_have_a_row() -> None:
    engines = tuple(EngineTiming(i, "alpha", timing=timing(1 + i / 100)) for i in range(17))
    text = as_text(ClusterTiming(engines), 100)
    rows = [line.split() for line in text.splitlines() if " alpha " in line]
    assert [row[0] for row in rows] == [str(i) for i in range(9, 17)]
    assert "the 8 slowest of 17 engines" in text
    assert "slowest: engine 16 on alpha" in text
