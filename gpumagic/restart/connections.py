"""Wait until the front ends of a kernel are connected again, and send replies to them.

A restart in place breaks every connection; zmq makes them again within about 100 ms, without
notifying the kernel. What is published earlier is lost, so the connections are counted.

Imports nothing of gpumagic: `loader` replies with it where the package cannot be imported.
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

#: Seconds between two checks.
_INTERVAL = 0.005
#: Seconds for a subscription to arrive after its connection, where the system does not count the
#: bytes received.
_SUBSCRIPTION_DELAY = 0.1
#: Seconds to wait for connections of this machine's other users, which are rarely front ends.
OTHER_USERS_TIMEOUT = 0.25
#: A zmq peer's greeting has 64 bytes; more bytes mean that its READY has arrived too.
_HANDSHAKE = 74


class ChannelState(NamedTuple):
    """The connections of a channel's clients, and the bytes received over them."""

    connections: int
    #: None where the system does not count them.
    received: int | None
    #: Whether there are bytes to read.
    pending: bool = False


Channels = dict[str, ChannelState]


def channels(app: Any, *, others: bool = True) -> Channels:
    """Return the state of the channels of a kernel on which it sends replies to clients.

    Without ``others`` the connections of this machine's other users are not counted.
    """
    return {n: _channel_state(_address(app, n), others) for n in ("shell", "iopub", "stdin")}


def snapshot(app: Any) -> tuple[Channels, Channels]:
    """Return `channels` with other users' connections and without, to wait for them later."""
    return channels(app), channels(app, others=False)


def _address(app: Any, name: str) -> int | str:
    port: int = getattr(app, f"{name}_port")
    return port if app.transport == "tcp" else f"{app.ip}-{port}"


def _channel_state(address: int | str, others: bool) -> ChannelState:
    received: int | None = 0
    count, pending = 0, False
    for connection in _clients(address, others):
        count += 1
        amount = _received(connection)
        received = None if received is None or amount is None else received + amount
        pending = pending or _unread(connection)
    return ChannelState(count, received, pending)


def _clients(address: int | str, others: bool = True) -> Iterator[socket.socket]:
    """Yield those of `_connections` whose client has sent a zmq greeting."""
    owners = None if others else _owners()
    for connection in _connections(address):
        amount = _received(connection)
        if amount is not None and amount < _HANDSHAKE:
            continue
        if owners is None or _peer(connection, owners) in (None, os.geteuid()):
            yield connection


def _connections(address: int | str) -> Iterator[socket.socket]:
    """Yield the accepted connections of this process at a TCP port, or a socket's path."""
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
    """Duplicate a descriptor as a socket object; None if it is no socket, or is closed.

    With a default timeout Python would make the socket non-blocking for its owner too, and each
    operation would wait so long.
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
    """Return whether a client is connected to an endpoint (``tcp://…``, ``ipc://…``) of ours."""
    transport, _, place = endpoint.partition("://")
    address = int(place.rpartition(":")[2]) if transport == "tcp" else place
    return any(True for _ in _clients(address, others))


def _received(connection: socket.socket) -> int | None:
    """Return the bytes received over a TCP connection; None where the system does not count."""
    if connection.family == socket.AF_UNIX or not _counts_bytes():
        return None
    return _bytes_received(connection)


@cache
def _counts_bytes() -> bool:
    """Return whether the system counts received bytes: old Linux and some sandboxes do not."""
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
    """Read ``tcpi_bytes_received`` of Linux's tcp.h."""
    if not sys.platform.startswith("linux"):
        return None
    try:
        info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 136)
    except OSError:
        return None
    return int(struct.unpack_from("Q", info, 128)[0]) if len(info) >= 136 else None


_End = tuple[str, int]


def _owners() -> dict[tuple[_End, _End], int]:
    """Return the user ids of local TCP connections, by both addresses: psutil has no user ids."""
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
    """Parse ``0100007F:1F90``: an address in the machine's order of bytes, and a port."""
    address, _, port = text.partition(":")
    return socket.inet_ntoa(struct.pack("=I", int(address, 16))), int(port, 16)


def _peer(connection: socket.socket, owners: Mapping[tuple[_End, _End], int]) -> int | None:
    """Return the user id at the other end of a connection; None if unknown."""
    try:
        return owners.get((connection.getpeername(), connection.getsockname()))
    except (OSError, TypeError):  # closed meanwhile, or an address of another kind
        return None


def _unread(connection: socket.socket) -> bool:
    try:
        return bool(connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT))
    except OSError:
        return False


async def wait_until_reconnected(
    app: Any, snapshots: Sequence[Mapping[str, Any]], timeout: float = 5.0
) -> None:
    """Wait until as many clients are connected, and have subscribed, as in the `snapshot`.

    At most ``timeout`` seconds, for another user's clients `OTHER_USERS_TIMEOUT` seconds, and for
    subscriptions one second: a client that does not read subscribes when it next does.
    """
    before = _by_others(snapshots)
    for _ in _until_connected(app, before, timeout):
        await asyncio.sleep(_INTERVAL)
    wanted = before[False]["iopub"].received
    if wanted is None or before[True]["iopub"].connections > before[False]["iopub"].connections:
        await asyncio.sleep(_SUBSCRIPTION_DELAY)
    deadline = time.monotonic() + 1
    # A client that reconnects sends the same bytes again: greeting, handshake, subscriptions.
    while _subscribed(app) < (wanted or 0) and time.monotonic() < deadline:
        await asyncio.sleep(_INTERVAL)
    # zmq's own thread has yet to process the subscription.
    await asyncio.sleep(2 * _INTERVAL)


def _until_connected(app: Any, before: Mapping[bool, Channels], timeout: float) -> Iterator[None]:
    """Yield until the clients of ``before`` are connected, or the time for them is over."""
    for others, seconds in ((True, min(OTHER_USERS_TIMEOUT, timeout)), (False, timeout)):
        deadline = time.monotonic() + seconds
        while not _all_connected(channels(app, others=others), before[others]):
            if time.monotonic() > deadline:
                break
            yield
        else:
            return


def _subscribed(app: Any) -> int:
    return channels(app, others=False)["iopub"].received or 0


def wait_for_clients(
    app: Any, snapshots: Sequence[Mapping[str, Any]], timeout: float = 2.0
) -> None:
    """Wait until as many clients are connected as before: replies to missing ones are dropped."""
    for _ in _until_connected(app, _by_others(snapshots), timeout):
        time.sleep(_INTERVAL)
    time.sleep(_SUBSCRIPTION_DELAY)


def _by_others(snapshots: Sequence[Mapping[str, Any]]) -> dict[bool, Channels]:
    """Return the states of a `snapshot`, by whether other users' connections are included."""
    found = [{name: ChannelState(*each) for name, each in states.items()} for states in snapshots]
    return {True: found[0], False: found[1]}


def _all_connected(now: Mapping[str, ChannelState], before: Mapping[str, ChannelState]) -> bool:
    return not any(
        now[name].pending or now[name].connections < before[name].connections for name in now
    )


async def send(stream: Any, message: list[bytes], timeout: float = 20.0) -> bool:
    """Send a reply on the kernel's shell socket as soon as its client is connected.

    Return False if the client is not connected within ``timeout`` seconds.
    """
    deadline = time.monotonic() + timeout
    while True:
        sent: concurrent.futures.Future[bool] = concurrent.futures.Future()
        # The socket belongs to the thread of its loop.
        stream.io_loop.add_callback(_try_send, stream, message, sent)
        if await asyncio.wrap_future(sent):
            return True
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(_INTERVAL)


def _try_send(stream: Any, message: list[bytes], sent: concurrent.futures.Future[bool]) -> None:
    # Without the option a message to a client that is not connected is dropped silently.
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
        # Sending clears the notification of messages that arrived meanwhile: check for them.
        stream.flush(zmq.POLLIN, limit=1)


def finish_publishing(app: Any, timeout: float = 2.0) -> None:
    """Stop publishing, and return when all that was published has been sent."""
    thread, done = app.iopub_thread, concurrent.futures.Future[None]()

    def unbind() -> None:
        try:
            thread.socket.unbind(thread.socket.getsockopt(zmq.LAST_ENDPOINT))
            done.set_result(None)
        except zmq.ZMQError as error:
            done.set_exception(error)

    thread.schedule(unbind)
    done.result(timeout)
    began = time.monotonic()
    # Its connections are closed when everything has been sent.
    while (waited := time.monotonic() - began) < timeout and any(
        True for _ in _clients(_address(app, "iopub"), waited < OTHER_USERS_TIMEOUT)
    ):
        # zmq processes closed connections only during a call on the socket.
        thread.schedule(lambda: thread.socket.getsockopt(zmq.EVENTS))
        time.sleep(0.001)


def resume_publishing(app: Any, bind: Callable[[Any, str], None]) -> None:
    """Undo `finish_publishing`; ``bind`` binds a socket to an endpoint again."""
    separator = ":" if app.transport == "tcp" else "-"
    endpoint = f"{app.transport}://{app.ip}{separator}{app.iopub_port}"
    if app.transport == "ipc":
        Path(f"{app.ip}-{app.iopub_port}").unlink(missing_ok=True)
    app.iopub_thread.schedule(lambda: bind(app.iopub_thread.socket, endpoint))
