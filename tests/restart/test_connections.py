"""The connections that a restart waits for: those of front ends, not others to its ports."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import zmq

from gpumagic.restart import connections
from tests.support.other_user import UID, needs_root

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="only Linux tells what came over a connection"
)

#: The first part of a zmq peer's greeting, which a client need not continue.
GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00NULL"
#: Seconds beyond the time limit of every test.
FOR_EVER = 3600.0
CHANNELS = {"shell": zmq.ROUTER, "iopub": zmq.PUB, "stdin": zmq.ROUTER}
CLIENT = {zmq.ROUTER: zmq.DEALER, zmq.PUB: zmq.SUB}


def wait_for(condition: Callable[[], Any]) -> None:
    while not condition():
        time.sleep(0.001)


def test_a_socket_is_read_without_a_default_timeout() -> None:
    """The socket stays blocking for its owner, and reading its state never waits."""
    ours, theirs = socket.socketpair()
    socket.setdefaulttimeout(FOR_EVER)
    try:
        copy = connections.socket_of(ours.fileno())
        assert copy is not None
        assert copy.gettimeout() is None
        assert not connections._unread(copy)
        copy.close()
        assert os.get_blocking(ours.fileno())
        assert socket.getdefaulttimeout() == FOR_EVER
        with Path(os.devnull).open() as file:
            assert connections.socket_of(file.fileno()) is None
    finally:
        socket.setdefaulttimeout(None)
        ours.close()
        theirs.close()


class Front:
    """A kernel's sockets, and a front end's."""

    def __init__(self) -> None:
        self.context = zmq.Context()
        self.sockets = {name: self.context.socket(kind) for name, kind in CHANNELS.items()}
        ports = {
            f"{name}_port": each.bind_to_random_port("tcp://127.0.0.1")
            for name, each in self.sockets.items()
        }
        thread = SimpleNamespace(socket=self.sockets["iopub"], schedule=lambda act: act())
        self.app = SimpleNamespace(transport="tcp", ip="127.0.0.1", iopub_thread=thread, **ports)
        self.clients: list[Any] = []
        self.raw: list[socket.socket] = []

    def port(self, name: str) -> int:
        return int(getattr(self.app, f"{name}_port"))

    def connect(self) -> None:
        for name, kind in CHANNELS.items():
            client = self.context.socket(CLIENT[kind])
            client.connect(f"tcp://127.0.0.1:{self.port(name)}")
            if kind == zmq.PUB:
                client.subscribe(b"")
            self.clients.append(client)

    def disturb(self) -> None:
        """Connect to each port twice, and send nothing, or half a greeting."""
        for name in CHANNELS:
            count = len([*connections._connections(self.port(name))])
            for said in (b"", GREETING):
                self.raw.append(socket.create_connection(("127.0.0.1", self.port(name))))
                self.raw[-1].send(said)
            wait_for(lambda: len([*connections._connections(self.port(name))]) == count + 2)  # noqa: B023

    def counted(self, *, others: bool = True) -> list[int]:
        return [each.connections for each in connections.channels(self.app, others=others).values()]

    def close(self) -> None:
        for each in self.raw:
            each.close()
        self.context.destroy(linger=0)


@pytest.fixture
def front() -> Iterator[Front]:
    made = Front()
    yield made
    made.close()


def test_a_silent_connection_is_no_client(front: Front) -> None:
    front.connect()
    wait_for(lambda: front.counted() == [1, 1, 1])
    before = connections.snapshot(front.app)
    front.disturb()
    assert front.counted() == [1, 1, 1]
    asyncio.run(connections.wait_until_reconnected(front.app, before, timeout=FOR_EVER))
    connections.wait_for_clients(front.app, before, timeout=FOR_EVER)
    connections.finish_publishing(front.app, timeout=FOR_EVER)
    front.clients[0].close(linger=0)
    wait_for(lambda: not connections.connected(f"tcp://127.0.0.1:{front.port('shell')}"))


def test_a_client_that_has_not_come_back_is_waited_for(front: Front) -> None:
    front.connect()
    wait_for(lambda: front.counted() == [1, 1, 1])
    before = connections.snapshot(front.app)
    for client in front.clients:
        client.close(linger=0)
    wait_for(lambda: front.counted() == [0, 0, 0])
    front.disturb()

    async def come_back() -> None:
        waiting = asyncio.ensure_future(
            connections.wait_until_reconnected(front.app, before, timeout=FOR_EVER)
        )
        done, _ = await asyncio.wait([waiting], timeout=3 * connections.OTHER_USERS_TIMEOUT)
        assert not done
        front.connect()
        await waiting

    asyncio.run(come_back())
    assert front.counted() == [1, 1, 1]


@needs_root
def test_another_users_connections_are_not_waited_for_long(front: Front) -> None:
    """Not even those that speak zmq, which has no password here."""
    front.connect()
    source = f"""
import os, sys, zmq
import zmq.utils.garbage
context = zmq.Context()
os.setgroups([]); os.setgid({UID}); os.setuid({UID})
held = []
for kind, port in {[(CLIENT[kind].value, front.port(name)) for name, kind in CHANNELS.items()]}:
    held.append(context.socket(kind))
    held[-1].linger = 0
    held[-1].connect("tcp://127.0.0.1:%d" % port)
sys.stdin.read()
"""
    with subprocess.Popen([sys.executable, "-c", source], stdin=subprocess.PIPE, cwd="/") as other:
        wait_for(lambda: front.counted() == [2, 2, 2])
        before = connections.snapshot(front.app)
        assert front.counted(others=False) == [1, 1, 1]
        other.communicate()
    wait_for(lambda: front.counted() == [1, 1, 1])
    asyncio.run(connections.wait_until_reconnected(front.app, before, timeout=FOR_EVER))
    connections.wait_for_clients(front.app, before, timeout=FOR_EVER)
