"""Clusters for the tests here: one of two engines for all that change nothing, others as needed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from IPython.core.interactiveshell import InteractiveShell

from tests.support.clusters import Cluster
from tests.support.kernels import python_environment
from tests.support.shells import Ran
from tests.virtual_gpu import Scenario, environment

GPUS = 4


@pytest.fixture
def cluster_of(tmp_path: Path) -> Iterator[Callable[..., Cluster]]:
    """``cluster_of(2, scenario=None, env=[...])``: a fresh cluster, ended after the test.

    ``env`` has a mapping for each engine; a variable that is mapped to None is left out.
    """
    started: list[Cluster] = []

    def start(
        number: int, scenario: Any = None, env: list[Mapping[str, str | None]] | None = None
    ) -> Cluster:
        whole = python_environment(environment(scenario or Scenario(devices=GPUS)))
        environments = []
        for change in env or [{}] * number:
            one = {**whole, **change}
            environments.append({name: value for name, value in one.items() if value is not None})
        folder = tmp_path / f"cluster{len(started)}"
        folder.mkdir()
        started.append(Cluster(folder))
        return started[-1].start(environments)

    yield start
    for each in started:
        each.close()


@pytest.fixture(scope="session")
def _shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    whole = python_environment(environment(Scenario(devices=GPUS)))
    cluster = Cluster(tmp_path_factory.mktemp("cluster")).start([whole] * 2)
    yield cluster
    cluster.close()


@pytest.fixture
def two(_shared: Cluster) -> Cluster:
    """Two engines on one machine with four GPUs, as fresh ones are; others use them too."""
    _shared.renew()
    return _shared


@pytest.fixture
def run(ip: InteractiveShell, run_cell: Callable[..., Ran]) -> Callable[..., Ran]:
    """``run(cluster, source)``: a cell in a shell that uses this cluster."""
    chosen: list[Cluster] = []

    def run(cluster: Cluster, source: str, **options: Any) -> Ran:
        if cluster not in chosen:
            chosen[:] = [cluster]
            run_cell(f"%gpu cluster -q {cluster.file}")
        return run_cell(source, **options)

    return run
