"""Clusters for these tests: one of two engines for tests that change nothing, others as needed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from IPython.core.interactiveshell import InteractiveShell

from gpumagic.cluster import calls, cells
from gpumagic.system import system_files
from tests.support import leaks
from tests.support.clusters import Cluster
from tests.support.kernels import python_environment
from tests.support.shells import Ran
from tests.support.waiting import until
from tests.virtual_gpu import Scenario, environment

GPUS = 4
#: Seconds for a reply: an engine that ends while it is asked may never give one.
_REPLY = 60.0

ENGINE_ID = "engine = get_ipython().kernel.engine_id"
INITIALISE_CUDA = "import torch; torch.zeros(1, device='cuda'); torch.cuda.synchronize()"


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
def _environment() -> Mapping[str, str]:
    """That of the engines which the tests share."""
    return python_environment(environment(Scenario(devices=GPUS)))


class Shared:
    """A cluster that several tests use, whose engines are replaced when a test has changed them.

    The controller, which is ten processes, stays.
    """

    def __init__(self, start: Callable[[], Cluster]) -> None:
        self._start = start
        self.cluster: Cluster | None = None

    def fresh(self) -> Cluster:
        """Two engines in the state in which they start."""
        before = {*threading.enumerate()}
        try:
            if self.cluster is not None and self.cluster.used():
                self.cluster.replace_engines()
        except Exception:  # whatever the last test did to it
            self.close()
        if self.cluster is None:
            self.cluster = self._start()
        self.cluster.used()
        leaks.SHARED.update({*threading.enumerate()} - before)
        return self.cluster

    def close(self) -> None:
        if self.cluster is not None:
            self.cluster.close()
            self.cluster = None


@pytest.fixture(scope="session")
def shared(
    _environment: Mapping[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Shared]:
    found = Shared(lambda: Cluster(tmp_path_factory.mktemp("cluster")).start([_environment] * 2))
    yield found
    found.close()


@pytest.fixture
def two_engines(
    shared: Shared, _environment: Mapping[str, str], monkeypatch: pytest.MonkeyPatch
) -> Cluster:
    """Two engines on one machine with four GPUs, in their first state; several tests use them.

    What this process claims, it claims on their machine.
    """
    monkeypatch.setenv(system_files.ROOT, _environment[system_files.ROOT])
    return shared.fresh()


@pytest.fixture
def cuda_engines(shared: Shared) -> Cluster:
    """Two engines that have initialised CUDA, each on a GPU of its own; several tests use them."""
    cluster, ask = shared.cluster, "globals().get('_ready')"
    if cluster is None or not all(cluster.value(engine, ask) for engine in (0, 1)):
        cluster = shared.fresh()
        mask = "import os; os.environ['CUDA_VISIBLE_DEVICES']"
        for engine in (0, 1):
            cluster.run(engine, f"{mask} = '{engine}'; {INITIALISE_CUDA}; _ready = True")
    return cluster


def once_begun(begun: Sequence[Path], then: Callable[[], object]) -> threading.Thread:
    """Start a thread that calls ``then`` when all files exist, which a cell creates."""

    def waits() -> None:
        until(lambda: all(file.exists() for file in begun))
        then()

    thread = threading.Thread(target=waits)
    thread.start()
    return thread


#: A cell that keeps an engine busy: it creates one file, and ends when there is another.
BUSY = """
import pathlib, time
pathlib.Path({begun!r}).touch()
while not pathlib.Path({end!r}).exists():
    time.sleep(0.02)
"""


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Engines take as long as the machine does: a test of one that does not reply sets a limit."""
    monkeypatch.setattr(calls, "TIMEOUT", _REPLY)
    monkeypatch.setattr(cells, "_INTERRUPT_TIMEOUT", _REPLY)


@pytest.fixture
def busy_engine(tmp_path: Path) -> Callable[[Cluster, int], AbstractContextManager[None]]:
    """Return a context manager, for a cluster and an engine, that keeps the engine busy."""
    begun, end = tmp_path / "begun", tmp_path / "end"

    @contextmanager
    def busy(cluster: Cluster, engine: int) -> Iterator[None]:
        source = BUSY.format(begun=str(begun), end=str(end))
        request = cluster.client[engine].execute(source, block=False)
        try:
            until(begun.exists)
            yield
        finally:
            end.touch()
            request.get(timeout=300)

    return busy


@pytest.fixture
def run(
    ip: InteractiveShell, run_cell: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Ran]:
    """``run(cluster, source)``: a cell in a shell that uses this cluster, its default profile's."""

    def run(cluster: Cluster, source: str, **options: Any) -> Ran:
        monkeypatch.setenv("IPYTHONDIR", str(cluster.folder))
        return run_cell(source, **options)

    return run
