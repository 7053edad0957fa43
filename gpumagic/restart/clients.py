"""The front ends of a kernel: whether they are connected, and an answer that does not get lost.

A restart in place breaks every connection; zmq makes them anew within about 100 ms, at a moment
that the kernel is not told. What is published before is lost, so the connections are counted.

Needs nothing else of gpumagic: `loader` answers with it where the package does not import.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import socket
import struct
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import zmq

#: Seconds between two looks.
_INTERVAL = 0.005
#: Seconds for a subscription to arrive after its connection, where the system does not tell how
#: much has arrived.
_SUBSCRIBING = 0.1
#: A zmq peer's greeting has 64 bytes; more than so many means that its READY has come too.
_HANDSHAKE = 74


class Arrived(NamedTuple):
    """What a channel has of its clients: connections, and the bytes that came over them."""

    connections: int
    #: None where the system does not tell.
    received: int | None
    #: True if bytes wait to be read, or a client's handshake is not complete.
    pending: bool = False


def channels(app: Any) -> dict[str, Arrived]:
    """The channels of a kernel that clients connect to and that answers go out on."""
    return {name: _arrived(_address(app, name)) for name in ("shell", "iopub", "stdin")}


def _address(app: Any, name: str) -> int | str:
    port: int = getattr(app, f"{name}_port")
    return port if app.transport == "tcp" else f"{app.ip}-{port}"


def _arrived(address: int | str) -> Arrived:
    received: int | None = 0
    count, pending = 0, False
    for connection in _connections(address):
        count += 1
        amount, unread = _received(connection), _unread(connection)
        received = None if received is None or amount is None else received + amount
        pending = pending or unread or (amount is not None and amount < _HANDSHAKE)
    return Arrived(count, received, pending)


def _connections(address: int | str) -> Iterator[socket.socket]:
    """Accepted connections of this process to ``address``: a TCP port, or a socket's path."""
    for descriptor in [int(entry.name) for entry in Path("/dev/fd").iterdir()]:
        try:
            copy = os.dup(descriptor)
        except OSError:
            continue  # closed since: the one by which the folder was listed, for example
        try:
            connection = socket.socket(fileno=copy)
        except OSError:
            os.close(copy)
            continue
        with connection:
            try:
                local: Any = connection.getsockname()
                connection.getpeername()
            except OSError:
                continue
            if isinstance(local, tuple):
                local = local[1]
            if local == address:
                yield connection


def connected(endpoint: str) -> bool:
    """Whether somebody is connected to an endpoint of this process's (``tcp://…``, ``ipc://…``)."""
    transport, _, place = endpoint.partition("://")
    address = int(place.rpartition(":")[2]) if transport == "tcp" else place
    return any(True for _ in _connections(address))


def _received(connection: socket.socket) -> int | None:
    """How many bytes came over a TCP connection: ``tcpi_bytes_received`` of Linux's tcp.h."""
    if not sys.platform.startswith("linux") or connection.family == socket.AF_UNIX:
        return None
    try:
        info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 136)
    except OSError:
        return None
    return (struct.unpack_from("Q", info, 128)[0] or None) if len(info) >= 136 else None


def _unread(connection: socket.socket) -> bool:
    try:
        return bool(connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT))
    except OSError:
        return False


async def back(app: Any, left: Mapping[str, Sequence[Any]], patience: float = 5.0) -> None:
    """Wait until as many clients are connected, and have subscribed, as `channels` told before.

    A client that does not come back within ``patience`` seconds is not waited for; nor, for longer
    than a second, one that does not read what is published: it subscribes when it next reads.
    """
    before = {name: Arrived(*arrived) for name, arrived in left.items()}
    deadline = time.monotonic() + patience
    while not _all_back(now := channels(app), before) and time.monotonic() < deadline:
        await asyncio.sleep(_INTERVAL)
    wanted = before["iopub"].received
    if wanted is None or now["iopub"].received is None:
        await asyncio.sleep(_SUBSCRIBING)
        return
    deadline = time.monotonic() + 1
    # A client that comes back sends what it sent at first: a greeting, a handshake, subscriptions.
    while (channels(app)["iopub"].received or 0) < wanted and time.monotonic() < deadline:
        await asyncio.sleep(_INTERVAL)
    # The last step, from the connection to the subscription, is this process's own.
    await asyncio.sleep(2 * _INTERVAL)


def wait_for(app: Any, before: Mapping[str, Arrived], patience: float = 2.0) -> None:
    """Wait until as many clients are connected as ``before``: an answer to others is dropped."""
    deadline = time.monotonic() + patience
    while not _all_back(channels(app), before) and time.monotonic() < deadline:
        time.sleep(_INTERVAL)
    time.sleep(_SUBSCRIBING)


def _all_back(now: Mapping[str, Arrived], before: Mapping[str, Arrived]) -> bool:
    return not any(
        now[name].pending or now[name].connections < before[name].connections for name in now
    )


async def send(stream: Any, message: list[bytes], patience: float = 20.0) -> bool:
    """Send an answer on the kernel's shell socket as soon as its client is connected.

    False if the client has not come back within ``patience`` seconds.
    """
    deadline = time.monotonic() + patience
    while True:
        sent: concurrent.futures.Future[bool] = concurrent.futures.Future()
        # The socket belongs to the thread of its loop.
        stream.io_loop.add_callback(_try, stream, message, sent)
        if await asyncio.wrap_future(sent):
            return True
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(_INTERVAL)


def _try(stream: Any, message: list[bytes], sent: concurrent.futures.Future[bool]) -> None:
    # Without the option a message to a client that is not connected is dropped in silence.
    stream.socket.router_mandatory = 1
    try:
        stream.socket.send_multipart(message, zmq.NOBLOCK)
        sent.set_result(True)
    except zmq.ZMQError as error:
        if error.errno in (zmq.EHOSTUNREACH, zmq.EAGAIN):
            sent.set_result(False)
        else:
            sent.set_exception(error)
    finally:
        stream.socket.router_mandatory = 0
        # A send takes the wake-up of what has arrived meanwhile; the stream looks by itself.
        stream.flush(zmq.POLLIN, limit=1)


def publish_all(app: Any, patience: float = 2.0) -> None:
    """Return when all that was published has left this process.

    The kernel then publishes nothing more, until `publish_again`.
    """
    thread, done = app.iopub_thread, concurrent.futures.Future[None]()

    def unbind() -> None:
        try:
            thread.socket.unbind(thread.socket.getsockopt(zmq.LAST_ENDPOINT))
            done.set_result(None)
        except zmq.ZMQError as error:
            done.set_exception(error)

    thread.schedule(unbind)
    done.result(patience)
    deadline = time.monotonic() + patience
    # Its connections are closed when everything has been sent.
    while _arrived(_address(app, "iopub")).connections and time.monotonic() < deadline:
        # A socket attends to its connections only when it is asked for something.
        thread.schedule(lambda: thread.socket.getsockopt(zmq.EVENTS))
        time.sleep(0.001)


def publish_again(app: Any, bind: Callable[[Any, str], None]) -> None:
    """Undo `publish_all`; ``bind`` has a socket listen again."""
    separator = ":" if app.transport == "tcp" else "-"
    endpoint = f"{app.transport}://{app.ip}{separator}{app.iopub_port}"
    if app.transport == "ipc":
        Path(f"{app.ip}-{app.iopub_port}").unlink(missing_ok=True)
    app.iopub_thread.schedule(lambda: bind(app.iopub_thread.socket, endpoint))
