"""What gpumagic costs on a cluster beside ipyparallel alone, and how that grows."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpumagic import __version__
from gpumagic.cluster import Cluster, cudatime, devices
from tests.benchmarks.row import Row
from tests.support import clusters
from tests.support.kernels import python_environment
from tests.virtual_gpu import Scenario, environment

ENGINES = (2, 8, 32)
GPUS = 8
CELL = "x = sum(range(1000))"
ROUNDS = 11


def rows() -> Iterator[Row]:
    for number in ENGINES:
        with tempfile.TemporaryDirectory() as folder:
            variables = python_environment(environment(Scenario(devices=GPUS)))
            running = clusters.Cluster(Path(folder))
            try:
                running.start([variables] * number)
                yield from _rows(Cluster(running.client, ""), number)
            finally:
                running.close()


def _rows(cluster: Cluster, number: int) -> Iterator[Row]:
    view = cluster.client[:]
    source = (
        "__import__('gpumagic.cluster.engine', fromlist=['answer'])"
        f".answer({__version__!r}, 'devices', {{'processes': False}})"
    )

    def table() -> None:
        str(devices(cluster))

    def bare_table() -> None:
        view.apply_sync(eval, source)

    def timed() -> None:
        assert len(cudatime(cluster, CELL).per_engine) == number

    def px() -> None:  # as ipyparallel's ParallelMagics.parallel_execute does it
        result = view.execute(CELL, silent=False, block=False)
        with result.stream_output():
            result.wait(2)
            result.wait_for_output(2)
            result.get()

    ours, reference = _in_turns(table, bare_table)
    what = "one apply_sync of the same collection function"
    name = f"%gpu cluster, {number} engines"
    if number == max(ENGINES):
        yield Row.at_most(name, ours.wall, reference.wall, 2.0, note=what)
    else:
        yield Row.shown(name, ours.wall, reference.wall, note=what)
    ours, reference = _in_turns(timed, px)
    name = f"%%cudatime --cluster, {number} engines"
    what = "the same cell by %%px alone"
    cpu_what = f"{what}: CPU time of the client's kernel, which limits a large cluster"
    cpu = (f"{name}, CPU per engine", ours.cpu / number, reference.cpu / number)
    if number == max(ENGINES):
        yield Row.at_most(name, ours.wall, reference.wall, 1.5, note=what)
        yield Row.at_most(*cpu, 1.5, note=cpu_what)
    else:
        yield Row.shown(name, ours.wall, reference.wall, note=what)
        yield Row.shown(*cpu, note=cpu_what)


@dataclass(frozen=True)
class Cost:
    """Median seconds of this process."""

    wall: float
    cpu: float


def _in_turns(ours: Callable[[], Any], reference: Callable[[], Any]) -> tuple[Cost, Cost]:
    """What each costs, run in turns on the same engines."""
    costs: dict[Any, list[tuple[float, float]]] = {ours: [], reference: []}
    for each in costs:
        each()
    for _ in range(ROUNDS):
        for each, values in costs.items():
            started = time.perf_counter(), time.process_time()
            each()
            values.append((time.perf_counter() - started[0], time.process_time() - started[1]))

    def cost(of: Any) -> Cost:
        walls, cpus = zip(*costs[of], strict=True)
        return Cost(statistics.median(walls), statistics.median(cpus))

    return cost(ours), cost(reference)
