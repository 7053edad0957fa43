"""Take the requests that are queued in the old program, for the new one.

The cell that asks ends at once, without a reply. From then on the kernel hands each request that it
has queued anywhere (its socket, its threads, its locks, its queue) to its handlers, one by one and
in order, as always; but the handlers are ours, and write it down. So nothing needs to be known of
where requests wait, and ipykernel 6 and 7 need no different code.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import zmq

from gpumagic.restart import ports

#: So many looks, 10 ms apart, without a new request: all that have arrived are taken.
_QUIET_LOOKS = 5
#: Seconds in which the cell that asks ends.
_PATIENCE = 5.0
#: Seconds in which a client ends its connection, if it is not stopped itself.
_LONGEST_LEAVE = 1.0


def take(kernel: Any, requests: list[list[bytes]], end: Callable[[], None]) -> None:
    """Call ``end`` when the cell has ended, and its request and all behind it are taken."""
    send, ended = kernel.session.send, asyncio.Event()

    def record(stream: object, identities: list[bytes], request: dict[str, Any]) -> None:
        parts = kernel.session.serialize(request, ident=identities)
        requests.append([*parts, *map(bytes, request.get("buffers", ()))])

    def without_reply(stream: object, kind: Any, *arguments: Any, **named: Any) -> Any:
        if kind not in ("execute_reply", "error"):
            return send(stream, kind, *arguments, **named)
        if kind == "execute_reply":
            ended.set()
        return {"content": {"status": "ok"}}  # ipykernel looks whether to abort the queue

    async def drain() -> None:
        with suppress(asyncio.TimeoutError):  # no reply comes where a stream cannot be flushed
            await asyncio.wait_for(ended.wait(), _PATIENCE)
        stream = kernel.shell_stream  # ipykernel 7 reads it in a thread, which alone may touch it
        leaving = _disconnect(stream.socket, kernel.parent.shell_port)
        loop = stream.io_loop.asyncio_loop
        with suppress(OSError):  # no descriptor is left: there is no way back all the same
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(leaving, loop))
        looks = 0
        while looks < _QUIET_LOOKS:
            seen = len(requests)
            await asyncio.sleep(0.01)
            looks = looks + 1 if len(requests) == seen else 0
        end()

    record(None, kernel._parent_ident["shell"], kernel.get_parent("shell"))
    kernel.io_loop.add_callback(drain)
    kernel.session.send = without_reply
    kernel.shell_handlers = dict.fromkeys(kernel.shell_handlers, record)
    # "busy" and "idle" are for the new program to say: an early "idle" ends a client's cell.
    kernel._publish_status = lambda *_, **__: None


def ignore_interrupts(kernel: Any) -> None:
    """Ignore SIGINT also while ipykernel handles a request, until its hook is its own again."""

    def stay_ignored() -> None:
        kernel.saved_sigint_handler = signal.SIG_IGN  # what ipykernel restores

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    kernel.pre_handler_hook = stay_ignored


async def _disconnect(shell: zmq.Socket[Any], port: int) -> None:
    """Have the clients end their connections: what they have sent until then arrives.

    They connect again after 100 ms or more, and keep what they send until then. One that came back
    too early would send on a connection that is cut off, and to zmq it would be another client.
    """
    end = time.monotonic() + _LONGEST_LEAVE
    with ports.closed(port) as waiting:
        while (waiting() or ports.connected(port)) and time.monotonic() < end:
            for each in ports.connected(port):
                with suppress(OSError), socket.socket(fileno=os.dup(each.fd)) as connection:
                    connection.shutdown(socket.SHUT_WR)
            await asyncio.sleep(0.01)
        with suppress(zmq.ZMQError):
            endpoint: Any = shell.getsockopt(zmq.LAST_ENDPOINT)
            shell.unbind(endpoint)  # it cuts off who is connected
