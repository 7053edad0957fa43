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
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import zmq

#: Seconds between two looks.
_INTERVAL = 0.005
#: Seconds for a subscription to arrive after its connection, where the system does not tell how
#: much has arrived.
_SUBSCRIBING = 0.1
#: Seconds for what other users of this machine have connected: as a rule it is no front end.
OTHERS = 0.25
#: A zmq peer's greeting has 64 bytes; more than so many means that its READY has come too.
_HANDSHAKE = 74


class Arrived(NamedTuple):
    """What a channel has of its clients: connections, and the bytes that came over them."""

    connections: int
    #: None where the system does not tell.
    received: int | None
    #: True if bytes wait to be read.
    pending: bool = False


Channels = dict[str, Arrived]


def channels(app: Any, *, others: bool = True) -> Channels:
    """The channels of a kernel that clients connect to and that answers go out on.

    Without ``others`` what other users of this machine have connected is left out.
    """
    return {n: _arrived(_address(app, n), others) for n in ("shell", "iopub", "stdin")}


def everybody(app: Any) -> tuple[Channels, Channels]:
    """`channels`, with others' and without, for `back` and `wait_for`."""
    return channels(app), channels(app, others=False)


def _address(app: Any, name: str) -> int | str:
    port: int = getattr(app, f"{name}_port")
    return port if app.transport == "tcp" else f"{app.ip}-{port}"


def _arrived(address: int | str, others: bool) -> Arrived:
    received: int | None = 0
    count, pending = 0, False
    for connection in _clients(address, others):
        count += 1
        amount = _received(connection)
        received = None if received is None or amount is None else received + amount
        pending = pending or _unread(connection)
    return Arrived(count, received, pending)


def _clients(address: int | str, others: bool = True) -> Iterator[socket.socket]:
    """Those of `_connections` that speak zmq: anybody can open one, and say nothing."""
    owners = None if others else _owners()
    for connection in _connections(address):
        amount = _received(connection)
        if amount is not None and amount < _HANDSHAKE:
            continue
        if owners is None or _peer(connection, owners) in (None, os.geteuid()):
            yield connection


def _connections(address: int | str) -> Iterator[socket.socket]:
    """Accepted connections of this process to ``address``: a TCP port, or a socket's path."""
    for descriptor in [int(entry.name) for entry in Path("/dev/fd").iterdir()]:
        connection = socket_of(descriptor)
        if connection is None:
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


def socket_of(descriptor: int) -> socket.socket | None:
    """Copy a descriptor into a socket, to look at it; None if it is no socket, or closed since.

    With a default timeout Python would make what the descriptor stands for non-blocking, also for
    its owner, and every look at it would wait so long.
    """
    try:
        copy = os.dup(descriptor)
    except OSError:
        return None
    default = socket.getdefaulttimeout()
    socket.setdefaulttimeout(None)
    try:
        return socket.socket(fileno=copy)
    except OSError:
        os.close(copy)
        return None
    finally:
        socket.setdefaulttimeout(default)


def connected(endpoint: str, *, others: bool = True) -> bool:
    """Whether somebody is connected to an endpoint of this process's (``tcp://…``, ``ipc://…``)."""
    transport, _, place = endpoint.partition("://")
    address = int(place.rpartition(":")[2]) if transport == "tcp" else place
    return any(True for _ in _clients(address, others))


def _received(connection: socket.socket) -> int | None:
    """How many bytes came over a TCP connection, where the system tells."""
    if connection.family == socket.AF_UNIX or not _tells():
        return None
    return _bytes_received(connection)


@cache
def _tells() -> bool:
    """Whether the system counts: an old Linux does not, nor does a sandbox that plays one."""
    try:
        with (
            socket.create_server(("127.0.0.1", 0)) as server,
            socket.create_connection(server.getsockname()) as client,
            server.accept()[0] as accepted,
        ):
            client.send(b"1")
            accepted.recv(1)
            return _bytes_received(accepted) == 1
    except OSError:
        return False


def _bytes_received(connection: socket.socket) -> int | None:
    """``tcpi_bytes_received`` of Linux's tcp.h."""
    if not sys.platform.startswith("linux"):
        return None
    try:
        info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 136)
    except OSError:
        return None
    return int(struct.unpack_from("Q", info, 128)[0]) if len(info) >= 136 else None


_End = tuple[str, int]


def _owners() -> dict[tuple[_End, _End], int]:
    """The users of the connections that begin on this machine, by their ends, as Linux tells."""
    found = {}
    try:
        lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
    except OSError:
        return {}
    for line in lines:
        words = line.split()
        found[_end(words[1]), _end(words[2])] = int(words[7])
    return found


def _end(text: str) -> _End:
    """``0100007F:1F90``: an address in the machine's order of bytes, and a port."""
    address, _, port = text.partition(":")
    return socket.inet_ntoa(struct.pack("=I", int(address, 16))), int(port, 16)


def _peer(connection: socket.socket, owners: Mapping[tuple[_End, _End], int]) -> int | None:
    """The user at the other end of a connection, if it is known."""
    try:
        return owners.get((connection.getpeername(), connection.getsockname()))
    except (OSError, TypeError):  # closed since, or no address of this kind
        return None


def _unread(connection: socket.socket) -> bool:
    try:
        return bool(connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT))
    except OSError:
        return False


async def back(app: Any, left: Sequence[Mapping[str, Any]], patience: float = 5.0) -> None:
    """Wait until as many clients are connected, and have subscribed, as `everybody` told before.

    A client that does not come back within ``patience`` seconds is not waited for, one of another
    user's not for `OTHERS` seconds; nor, for longer than a second, one that does not read what is
    published: it subscribes when it next reads.
    """
    before = _before(left)
    for _ in _missing(app, before, patience):
        await asyncio.sleep(_INTERVAL)
    wanted = before[False]["iopub"].received
    if wanted is None or before[True]["iopub"].connections > before[False]["iopub"].connections:
        await asyncio.sleep(_SUBSCRIBING)
    deadline = time.monotonic() + 1
    # A client that comes back sends what it sent at first: a greeting, a handshake, subscriptions.
    while _subscribed(app) < (wanted or 0) and time.monotonic() < deadline:
        await asyncio.sleep(_INTERVAL)
    # The last step, from the connection to the subscription, is this process's own.
    await asyncio.sleep(2 * _INTERVAL)


def _missing(app: Any, before: Mapping[bool, Channels], patience: float) -> Iterator[None]:
    """Yield as long as clients that were there ``before`` are worth waiting for."""
    for others, seconds in ((True, min(OTHERS, patience)), (False, patience)):
        deadline = time.monotonic() + seconds
        while not _all_back(channels(app, others=others), before[others]):
            if time.monotonic() > deadline:
                break
            yield
        else:
            return


def _subscribed(app: Any) -> int:
    return channels(app, others=False)["iopub"].received or 0


def wait_for(app: Any, left: Sequence[Mapping[str, Any]], patience: float = 2.0) -> None:
    """Wait until as many clients are connected as before: an answer to others is dropped."""
    for _ in _missing(app, _before(left), patience):
        time.sleep(_INTERVAL)
    time.sleep(_SUBSCRIBING)


def _before(left: Sequence[Mapping[str, Any]]) -> dict[bool, Channels]:
    """What `everybody` told, by whether others' connections are in it."""
    found = [{name: Arrived(*each) for name, each in told.items()} for told in left]
    return {True: found[0], False: found[1]}


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
    began = time.monotonic()
    # Its connections are closed when everything has been sent.
    while (waited := time.monotonic() - began) < patience and any(
        True for _ in _clients(_address(app, "iopub"), waited < OTHERS)
    ):
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
