"""``%%cudatime --cluster`` with 32 engines beside ipyparallel alone."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

from gpumagic.cluster import Cluster, cudatime
from tests.benchmarks.row import Row
from tests.support import clusters
from tests.support.kernels import child_environment
from tests.virtual_gpu import Scenario

ENGINES = 32
CELL = "x = sum(range(1000))"
ROUNDS = 9


def rows() -> Iterator[Row]:
    variables = child_environment(Scenario(devices=8))
    with tempfile.TemporaryDirectory() as folder:
        running = clusters.Cluster(Path(folder))
        try:
            running.start([variables] * ENGINES)
            yield from _rows(running.client)
        finally:
            running.close()


def _rows(client: Any) -> Iterator[Row]:
    cluster, view = Cluster(client, ""), client[:]

    def timed() -> None:
        assert len(cudatime(cluster, CELL).per_engine) == ENGINES

    def px() -> None:  # as ipyparallel's ParallelMagics.parallel_execute does it
        result = view.execute(CELL, silent=False, block=False)
        with result.stream_output():
            result.wait(2)
            result.wait_for_output(2)
            result.get()

    _cost(timed), _cost(px)
    turns = [(*_cost(timed), *_cost(px)) for _ in range(ROUNDS)]
    wall, cpu, px_wall, px_cpu = (median(column) for column in zip(*turns, strict=True))
    name, note = f"%%cudatime --cluster, {ENGINES} engines", "the same cell by %%px"
    yield Row(name, wall, px_wall, note, 1.5)
    yield Row(f"{name}: CPU time of the client", cpu, px_cpu, note, 1.5)


def _cost(call: Callable[[], None]) -> tuple[float, float]:
    """Return the seconds of a call, by the clock and of this process's CPU."""
    started = time.perf_counter(), time.process_time()
    call()
    return time.perf_counter() - started[0], time.process_time() - started[1]
