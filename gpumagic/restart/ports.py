"""Hold a kernel's connection across the restart: otherwise another user could take its place.

The new program inherits the listening sockets, and is told the ports and the key that this one has:
others may have replaced the connection file. As ipykernel needs them before it loads any extension,
this file is also the IPython configuration that gives them to it.
"""

from __future__ import annotations

import ctypes
import os
import select
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Any

import psutil
import zmq

from gpumagic.errors import RestartError
from gpumagic.restart import handover

if TYPE_CHECKING:
    from ipykernel.kernelapp import IPKernelApp


def option() -> str:
    """Return the command-line option by which the new program reads this file."""
    return f"--IPKernelApp.extra_config_file={__file__}"


def check(app: IPKernelApp) -> None:
    """Return if the connection can be held.

    Raises:
        RestartError: its sockets are files, which others may replace, or the user's configuration
            is in the place of this one.
    """
    if app.transport != "tcp" or app.extra_config_file not in ("", __file__):
        raise RestartError(
            "only a kernel whose sockets are ports (transport tcp), and that is started without "
            "--config, keeps its connection: restart the notebook process (Kernel > Restart)"
        )


def hold(app: IPKernelApp) -> dict[int, int]:
    """Keep the sockets through an ``execve``; return their descriptors by port."""
    names = ("shell_port", "iopub_port", "stdin_port", "control_port", "hb_port")
    return {port: os.dup(fd) for port, fd in _listening(*(getattr(app, each) for each in names))}


@contextmanager
def closed(port: int) -> Iterator[Callable[[], bool]]:
    """Within the block, nobody can connect to ``port``: the client's system tries again, after 1 s.

    Gives a function, which says whether somebody is connected whom zmq has not accepted yet.
    """
    # "return 0" for the kernel's packet filter: it drops all packets. Names of <asm/socket.h>.
    so_attach_filter, so_detach_filter = 26, 27
    code = ctypes.create_string_buffer(struct.pack("HBBI", 0x06, 0, 0, 0))
    program = struct.pack("HP", 1, ctypes.addressof(code))
    with ExitStack() as stack:
        found = [socket.socket(fileno=os.dup(fd)) for _, fd in _listening(port)]
        for each in map(stack.enter_context, found):
            with suppress(OSError):  # a sandbox has no filters
                each.setsockopt(socket.SOL_SOCKET, so_attach_filter, program)
                stack.callback(each.setsockopt, socket.SOL_SOCKET, so_detach_filter, 0)
        yield lambda: bool(select.select(found, (), (), 0)[0])


def connected(*ports: int) -> list[Any]:
    """Return the connections of clients to ports of this process."""
    return [each for each in _sockets(*ports) if each.raddr]


def clients(app: IPKernelApp) -> int:
    """Count the connections on which the kernel sends; on that of the output, the subscribers."""
    subscribed = filter(_has_subscribed, connected(app.iopub_port))
    return len(connected(app.shell_port)) + len([*subscribed])


def _has_subscribed(connection: Any) -> bool:
    """Whether more has arrived than the handshake of ZMTP 3 (a greeting of 64 bytes and READY)."""
    try:
        with socket.socket(fileno=os.dup(connection.fd)) as client:
            info = client.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
    except OSError:  # it has ended
        return False
    received = 128  # the place of tcpi_bytes_received in the struct tcp_info of <linux/tcp.h>
    return len(info) < received + 8 or struct.unpack_from("Q", info, received)[0] > 91


def _listening(*ports: int) -> list[tuple[int, int]]:
    """Return the ports with a listening socket of this process, and its descriptor."""
    found = _sockets(*ports)
    return [(each.laddr.port, each.fd) for each in found if each.status == psutil.CONN_LISTEN]


def _sockets(*ports: int) -> list[Any]:
    """Return this process's TCP sockets on ``ports``; none in a sandbox without ``/proc/net``."""
    process = psutil.Process()
    try:
        found = getattr(process, "net_connections", process.connections)("tcp")
    except (psutil.Error, OSError):
        return []
    return [each for each in found if each.laddr.port in ports]


def _take() -> None:
    """In the new program, before ipykernel connects: have it take what is held."""
    from ipykernel.heartbeat import Heartbeat
    from ipykernel.kernelapp import IPKernelApp

    state = handover.look()
    if state is None:
        return
    held = dict(state.listening)
    app: Any = IPKernelApp.instance()
    kind: Any = Heartbeat
    bind, bind_heartbeat = app._bind_socket, kind._try_bind_socket

    def take(socket: zmq.Socket[bytes], port: int) -> None:
        descriptor = held.pop(port, None)
        if descriptor is not None:
            os.set_inheritable(descriptor, False)
            socket.setsockopt(zmq.USE_FD, descriptor)

    def bind_held(socket: zmq.Socket[bytes], port: int) -> Any:
        take(socket, port)
        return bind(socket, port)

    def bind_heartbeat_held(heartbeat: Any) -> Any:
        kind._try_bind_socket = bind_heartbeat
        take(heartbeat.socket, heartbeat.port)
        return bind_heartbeat(heartbeat)

    # The file is not written either: the front ends know what is in it.
    app.init_connection_file = lambda: app.load_connection_info(state.connection)
    app.write_connection_file = lambda **_: None
    app._bind_socket = bind_held
    kind._try_bind_socket = bind_heartbeat_held


if "get_config" in globals():  # read as a configuration
    _take()
