"""The sockets on which a kernel listens, open across ``execve``.

No other process can take the ports meanwhile, and clients that connect only wait.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import zmq

from gpumagic.restart.connections import socket_of

CHANNELS = ("shell", "iopub", "stdin", "control", "hb")


@contextmanager
def listening_copies(app: Any) -> Iterator[dict[int, int]]:
    """Duplicate the descriptors on which a kernel listens, by their TCP ports.

    With another transport there are none: a Unix socket is in a folder of the user's own.
    """
    ports = {getattr(app, f"{name}_port") for name in CHANNELS} if app.transport == "tcp" else set()
    found: dict[int, int] = {}
    try:
        for descriptor in [int(entry.name) for entry in Path("/dev/fd").iterdir()]:
            port = _listening_port(descriptor)
            if port is not None and port in ports and port not in found:
                found[port] = os.dup(descriptor)
        yield found
    finally:
        for copy in found.values():
            os.close(copy)


def _listening_port(descriptor: int) -> int | None:
    """Return the TCP port on which a descriptor listens; None for any other descriptor."""
    looked_at = socket_of(descriptor)
    if looked_at is None:
        return None
    with looked_at:
        try:
            if looked_at.family not in (socket.AF_INET, socket.AF_INET6):
                return None
            if not looked_at.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                return None
            port: int = looked_at.getsockname()[1]
            return port
        except OSError:
            return None


def rebind(bound: Any, endpoint: str, descriptors: Mapping[int, int]) -> None:
    """Bind a zmq socket to its former endpoint again; call on the socket's thread."""
    port = endpoint.rpartition(":")[2]
    descriptor = descriptors.get(int(port)) if port.isdigit() else None
    if descriptor is not None:
        bound.setsockopt(zmq.USE_FD, os.dup(descriptor))
        try:
            bound.bind(endpoint)
        finally:
            bound.setsockopt(zmq.USE_FD, -1)
        return
    deadline = time.monotonic() + 5
    while True:
        try:
            bound.bind(endpoint)
            return
        except zmq.ZMQError:  # the system has not freed the address yet
            if time.monotonic() > deadline:
                raise
            time.sleep(0.005)
