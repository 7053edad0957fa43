"""The clusters of the tests: all engines are there when they have started."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.clusters import Cluster
from tests.support.kernels import PATIENCE, python_environment
from tests.virtual_gpu import Scenario, environment


def test_an_engine_that_registers_while_the_client_connects_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the controller has told the client its engines, and before it tells it news."""
    import zmq
    from ipyparallel import util

    connect, log = util.connect, tmp_path / "log.txt"
    delayed = []

    def connect_late(socket: Any, *arguments: Any, **named: Any) -> Any:
        if socket.type == zmq.SUB and not delayed:
            delayed.append(socket)
            deadline = time.monotonic() + PATIENCE
            while "Engine Connected: 0" not in log.read_text():
                assert time.monotonic() < deadline
                time.sleep(0.02)
        return connect(socket, *arguments, **named)

    monkeypatch.setattr(util, "connect", connect_late)
    cluster = Cluster(tmp_path)
    try:
        cluster.start([python_environment(environment(Scenario(devices=1)))])
        assert delayed
        assert cluster.client.ids == [0]
        assert cluster.value(0, "1 + 1") == 2
    finally:
        cluster.close()


def test_code_ends_also_where_the_client_misses_its_output(tmp_path: Path) -> None:
    """A client that has just connected may not be subscribed to it yet."""
    from ipyparallel.error import RemoteError

    cluster, stopped = Cluster(tmp_path), threading.Event()
    try:
        cluster.start([python_environment(environment(Scenario(devices=1)))])

        def miss_output() -> None:
            cluster.client._iopub_stream.stop_on_recv()
            stopped.set()

        cluster.client._io_loop.add_callback(miss_output)
        assert stopped.wait(PATIENCE)
        cluster.run(0, "x = 1")
        assert cluster.value(0, "x") == 1
        with pytest.raises(RemoteError, match="ZeroDivisionError"):
            cluster.run(0, "1 / 0")
    finally:
        cluster.close()


def test_a_connection_file_is_read_when_it_is_complete(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    assert not cluster.files_are_complete()
    cluster.file.parent.mkdir(parents=True)
    engines = cluster.file.with_name("ipcontroller-engine.json")
    for client, engine in (("", ""), ('{"a":', "{}"), ("{}", '{"a')):
        cluster.file.write_text(client)
        engines.write_text(engine)
        assert not cluster.files_are_complete()
    engines.write_text("{}")
    assert cluster.files_are_complete()
    cluster.close()
