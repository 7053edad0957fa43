"""One server for all tests of pages: its start takes seconds."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.frontends import lab
from tests.support import device
from tests.support.kernels import python_environment
from tests.virtual_gpu import Scenario, World, environment


@pytest.fixture(scope="session")
def _server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[lab.Server]:
    folder = tmp_path_factory.mktemp("server")
    variables = python_environment(environment(Scenario(devices=device.DEVICES)))
    with lab.server(folder, lab.environment_for(variables, folder)) as running:
        yield running


@pytest.fixture
def server(_server: lab.Server) -> Iterator[lab.Server]:
    """A server with no kernel, on GPUs that no test has changed."""
    yield _server
    _server.end_kernels()
    World.current(_server.environment).reset()
