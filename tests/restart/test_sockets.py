"""A kernel's listening sockets: copied, and bound again after an ``execve`` that failed."""

from __future__ import annotations

import os
import socket
from types import SimpleNamespace
from typing import Any

import pytest
import zmq

from gpumagic.restart import sockets

pytestmark = pytest.mark.skipif(os.name == "nt", reason="Windows restarts nothing")


def _app(ports: list[int], transport: str = "tcp") -> Any:
    named = {f"{name}_port": port for name, port in zip(sockets.CHANNELS, ports, strict=True)}
    return SimpleNamespace(transport=transport, **named)


def test_copies_of_the_sockets_that_listen() -> None:
    servers = [socket.create_server(("127.0.0.1", 0)) for _ in range(6)]
    ports = [server.getsockname()[1] for server in servers]
    try:
        with sockets.listening_copies(_app(ports[:5])) as copies:
            assert copies.keys() == {*ports[:5]}
            for server, port in zip(servers[:5], ports, strict=False):
                assert os.path.sameopenfile(server.fileno(), copies[port])
                assert server.fileno() != copies[port]
        for copy in copies.values():
            with pytest.raises(OSError, match="Bad file descriptor"):
                os.fstat(copy)
        with sockets.listening_copies(_app(ports[:5], "ipc")) as copies:
            assert copies == {}
    finally:
        for server in servers:
            server.close()


@pytest.mark.parametrize("copied", [True, False])
def test_a_socket_is_bound_again(copied: bool) -> None:
    """On the copy of its descriptor, which has been listening all the time, or on the address."""
    with zmq.Context() as context, context.socket(zmq.ROUTER) as bound:
        port = bound.bind_to_random_port("tcp://127.0.0.1")
        endpoint = f"tcp://127.0.0.1:{port}"
        app = _app([port] * 5 if copied else [0] * 5)
        with sockets.listening_copies(app) as copies:
            assert len(copies) == copied
            bound.unbind(endpoint)
            sockets.rebind(bound, endpoint, copies)
        with context.socket(zmq.DEALER) as client:
            client.linger = 0
            client.connect(endpoint)
            client.send(b"request")
            assert bound.poll(300_000)
            assert bound.recv_multipart()[1] == b"request"
