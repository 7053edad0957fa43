"""The rows and lines that results of several engines share."""

from __future__ import annotations

from gpumagic.results import EngineTiming
from gpumagic.results.cluster_engines import engine_ids, highest


def test_engine_ids() -> None:
    assert engine_ids([3]) == "engine 3"
    assert engine_ids([0, 2, 1, 7]) == "engines 0–2, 7"


def test_the_highest_of_many() -> None:
    engines = [EngineTiming(i) for i in range(16)]
    assert highest(engines, lambda each: -each.engine) == engines
    engines.append(EngineTiming(16))
    assert highest(engines, lambda each: -each.engine) == engines[:8]
