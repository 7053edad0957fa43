"""Requests that wait in a kernel: taken out before it is replaced, handed to its successor.

They wait on the shell socket; from ipykernel 7 on also between the thread that reads the socket and
the main thread, and, read but not yet run, in coroutines; in ipykernel 6 in the kernel's queue.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import inspect
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import zmq

from gpumagic.restart import connections, sockets
from gpumagic.restart.shell_queue import Message, inbox, put

#: Seconds without a further request after which a front end is taken to have sent all it has.
_QUIET = 0.015
_LONGEST = 1.0
#: Seconds in which what has arrived at the last moment comes through to the socket.
_LAST = 0.005


def asking(kernel: Any) -> Message:
    """The request that is being run."""
    parent, identities = kernel.get_parent("shell"), kernel._parent_ident["shell"]
    message: Message = kernel.session.serialize(parent, ident=identities)
    return [*message, *map(bytes, parent.get("buffers", ()))]


class Waiting:
    """The requests that wait in ``kernel``, taken out in the order of their arrival.

    Must be used on the main thread. On a kernel with a thread for the shell socket that thread is
    stopped by `take`; `give_back` undoes everything.
    """

    def __init__(self, kernel: Any, descriptors: Mapping[int, int] | None = None) -> None:
        """``descriptors`` are those of `sockets.kept`."""
        self._kernel = kernel
        self._descriptors = descriptors or {}
        self._stream = inbox(kernel)
        self._reader = getattr(kernel, "shell_channel_thread", None)
        self._go_on = threading.Event()
        self._items: list[Any] = []
        self._received: list[list[zmq.Frame]] = []
        self._door: str | None = None

    def take(self) -> list[Message]:
        """Take all; from now on the kernel reads none.

        Raises:
            TimeoutError: the thread of the shell socket does not answer.
        """
        kernel = self._kernel
        held = list(_held_by_tasks(asyncio.all_tasks(_loop_of(self._stream))))
        queue = getattr(kernel, "msg_queue", None)
        while queue is not None and queue.qsize():
            self._items.append(queue.get_nowait())
        held += _messages_in(self._items)
        self._receive_until_quiet(_QUIET, _LONGEST)
        if self._reader is None:
            self._close_door(self._stream.socket)
            while not self._door_is_shut():
                self._receive(self._stream.socket)
                time.sleep(0.001)
            self._receive_until_quiet(_LAST, _LAST)
        else:
            self._stop_reader()
        messages = [[part.bytes for part in parts] for parts in [*held, *self._received]]
        return [message for message in messages if _is_open(kernel, message)]

    def give_back(self) -> None:
        """The kernel goes on after all."""
        if self._reader is None:
            self._open_door(self._stream.socket)
        for item in self._items:
            self._kernel.msg_queue.put_nowait(item)
        put(self._kernel, [[part.bytes for part in parts] for parts in self._received])
        self._go_on.set()

    def _close_door(self, socket: Any) -> None:
        """Let clients keep what they send from now on until they are connected again.

        What has come is still there to be received.
        """
        try:
            door = socket.getsockopt(zmq.LAST_ENDPOINT)
            socket.unbind(door)
        except zmq.ZMQError:  # one that connects itself, as an ipyparallel engine's
            return
        self._door = door.rstrip(b"\0").decode()
        self._shut_by = time.monotonic() + _LONGEST

    def _door_is_shut(self) -> bool:
        """Whether every connection is closed: all that came over them has come through then."""
        if self._door is None or (left := self._shut_by - time.monotonic()) < 0:
            return True
        return not connections.connected(self._door, others=left > _LONGEST - connections.OTHERS)

    def _open_door(self, socket: Any) -> None:
        if self._door is not None:
            sockets.bind_again(socket, self._door, self._descriptors)

    def _receive_until_quiet(self, quiet: float, longest: float) -> None:
        started = last = time.monotonic()
        while (now := time.monotonic()) - last < quiet and now - started < longest:
            if self._receive(self._stream.socket):
                last = now
            time.sleep(0.001)

    def _receive(self, socket: Any) -> bool:
        before = len(self._received)
        while True:
            try:
                self._received.append(socket.recv_multipart(zmq.NOBLOCK, copy=False))
            except zmq.Again:
                return len(self._received) > before

    def _stop_reader(self) -> None:
        """Stop the thread that reads the shell socket, and take what it has not handed over."""
        left: concurrent.futures.Future[list[Any]] = concurrent.futures.Future()

        def stop() -> None:
            stream = self._kernel.shell_stream
            found = list(_held_by_tasks(asyncio.all_tasks(_loop_of(stream))))
            self._close_door(stream.socket)
            until = time.monotonic() + _LAST
            while not self._door_is_shut() or time.monotonic() < until:
                if stream.socket.poll(1):
                    found.append(stream.socket.recv_multipart(zmq.NOBLOCK, copy=False))
            left.set_result(found)
            self._go_on.wait()
            self._open_door(stream.socket)

        self._kernel.shell_stream.io_loop.add_callback(stop)
        try:
            found = left.result(timeout=5)
        except concurrent.futures.TimeoutError:
            self._go_on.set()
            raise TimeoutError("the kernel's thread for requests does not answer") from None
        self._receive(self._stream.socket)
        self._received += found


def _is_open(kernel: Any, message: Message) -> bool:
    """Whether a message is a request, and has not been run: a cell must never run twice."""
    session = kernel.session
    try:
        _, (signature, header, *_) = session.feed_identities(message)
        if session.unpack(header)["msg_id"] == kernel.get_parent("shell")["header"]["msg_id"]:
            return False
    except Exception:  # ipykernel's own note to itself, or nothing of the protocol
        return False
    # The session remembers what it has taken apart, against replays.
    return signature not in session.digest_history


def _loop_of(stream: Any) -> Any:
    return stream.io_loop.asyncio_loop


def _held_by_tasks(tasks: Iterable[asyncio.Task[Any]]) -> Iterator[list[zmq.Frame]]:
    """The requests that coroutines hold in their variables, in the order of their arrival."""
    seen: set[int] = set()
    for task in sorted(tasks, key=_number):
        frame = getattr(task.get_coro(), "cr_frame", None)
        variables = [] if frame is None else list(frame.f_locals.values())
        if any(inspect.iscoroutine(value) for value in variables):
            continue  # it has handed its message on
        for message in _messages_in(variables):
            if id(message) not in seen:
                seen.add(id(message))
                yield message


def _number(task: asyncio.Task[Any]) -> int:
    """Tasks are named in the order in which they were made."""
    number = task.get_name().rpartition("-")[2]
    return int(number) if number.isdigit() else 0


def _messages_in(values: Iterable[Any]) -> Iterator[list[zmq.Frame]]:
    for value in values:
        if isinstance(value, tuple):
            yield from _messages_in(value)
        elif isinstance(value, list) and value and all(isinstance(p, zmq.Frame) for p in value):
            yield value
