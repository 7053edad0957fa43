"""The pending requests of a kernel, which a restart in place hands to the new process.

They wait on the shell socket; in ipykernel 7 also between the thread that reads the socket and
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
from gpumagic.restart.shell_queue import Message, put, request_stream

#: Seconds without a further request after which a front end has presumably sent all requests.
_QUIET = 0.015
_MAX_WAIT = 1.0
#: Seconds for bytes that have arrived to be messages of the socket.
_IN_TRANSIT = 0.005


def current_request(kernel: Any) -> Message:
    """Return the request that is being run."""
    parent, identities = kernel.get_parent("shell"), kernel._parent_ident["shell"]
    message: Message = kernel.session.serialize(parent, ident=identities)
    return [*message, *map(bytes, parent.get("buffers", ()))]


class PendingRequests:
    """The pending requests of ``kernel``, in the order of their arrival. For the main thread.

    `take` stops the thread of the shell socket, where there is one; `put_back` undoes everything.
    """

    def __init__(self, kernel: Any, descriptors: Mapping[int, int] | None = None) -> None:
        """``descriptors`` are those of `sockets.listening_copies`."""
        self._kernel = kernel
        self._descriptors = descriptors or {}
        self._stream = request_stream(kernel)
        self._reader = getattr(kernel, "shell_channel_thread", None)
        self._resumed = threading.Event()
        self._queued: list[Any] = []
        self._received: list[list[zmq.Frame]] = []
        self._endpoint: str | None = None

    def take(self) -> list[Message]:
        """Take all requests; from now on the kernel reads none.

        Raises:
            TimeoutError: the thread of the shell socket does not answer.
        """
        kernel = self._kernel
        read = list(_read_by_tasks(asyncio.all_tasks(_loop_of(self._stream))))
        queue = getattr(kernel, "msg_queue", None)
        while queue is not None and queue.qsize():
            self._queued.append(queue.get_nowait())
        read += _messages_in(self._queued)
        self._receive_until_quiet(_QUIET, _MAX_WAIT)
        if self._reader is None:
            self._unbind(self._stream.socket)
            while not self._is_disconnected():
                self._receive(self._stream.socket)
                time.sleep(0.001)
            self._receive_until_quiet(_IN_TRANSIT, _IN_TRANSIT)
        else:
            self._stop_reader()
        messages = [[part.bytes for part in parts] for parts in [*read, *self._received]]
        return [message for message in messages if _is_unanswered(kernel, message)]

    def put_back(self) -> None:
        """Return the requests to the kernel, which continues."""
        if self._reader is None:
            self._rebind(self._stream.socket)
        for item in self._queued:
            self._kernel.msg_queue.put_nowait(item)
        put(self._kernel, [[part.bytes for part in parts] for parts in self._received])
        self._resumed.set()

    def _unbind(self, socket: Any) -> None:
        """Close the connections: clients queue their requests until they are connected again.

        What has arrived can still be received.
        """
        try:
            endpoint = socket.getsockopt(zmq.LAST_ENDPOINT)
            socket.unbind(endpoint)
        except zmq.ZMQError:  # the socket connects itself, as an ipyparallel engine's does
            return
        self._endpoint = endpoint.rstrip(b"\0").decode()
        self._disconnect_by = time.monotonic() + _MAX_WAIT

    def _is_disconnected(self) -> bool:
        """Return whether every connection is closed, so that nothing more can arrive."""
        if self._endpoint is None or (left := self._disconnect_by - time.monotonic()) < 0:
            return True
        return not connections.connected(
            self._endpoint, others=left > _MAX_WAIT - connections.OTHER_USERS_TIMEOUT
        )

    def _rebind(self, socket: Any) -> None:
        if self._endpoint is not None:
            sockets.rebind(socket, self._endpoint, self._descriptors)

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
        """Stop the thread that reads the shell socket; take what it has not forwarded."""
        left: concurrent.futures.Future[list[Any]] = concurrent.futures.Future()

        def stop() -> None:
            stream = self._kernel.shell_stream
            found = list(_read_by_tasks(asyncio.all_tasks(_loop_of(stream))))
            self._unbind(stream.socket)
            until = time.monotonic() + _IN_TRANSIT
            while not self._is_disconnected() or time.monotonic() < until:
                if stream.socket.poll(1):
                    found.append(stream.socket.recv_multipart(zmq.NOBLOCK, copy=False))
            left.set_result(found)
            self._resumed.wait()
            self._rebind(stream.socket)

        self._kernel.shell_stream.io_loop.add_callback(stop)
        try:
            found = left.result(timeout=5)
        except concurrent.futures.TimeoutError:
            self._resumed.set()
            raise TimeoutError("the kernel's thread for requests does not answer") from None
        self._receive(self._stream.socket)
        self._received += found


def _is_unanswered(kernel: Any, message: Message) -> bool:
    """Return whether a message is a request that was not run: no cell may run twice."""
    session = kernel.session
    try:
        _, (signature, header, *_) = session.feed_identities(message)
        if session.unpack(header)["msg_id"] == kernel.get_parent("shell")["header"]["msg_id"]:
            return False
    except Exception:  # a message within ipykernel, or none of the protocol
        return False
    # The session remembers the signatures of parsed messages, against replays.
    return signature not in session.digest_history


def _loop_of(stream: Any) -> Any:
    return stream.io_loop.asyncio_loop


def _read_by_tasks(tasks: Iterable[asyncio.Task[Any]]) -> Iterator[list[zmq.Frame]]:
    """Yield the requests in the local variables of coroutines, in the order of their arrival."""
    seen: set[int] = set()
    for task in sorted(tasks, key=_task_number):
        frame = getattr(task.get_coro(), "cr_frame", None)
        variables = [] if frame is None else list(frame.f_locals.values())
        if any(inspect.iscoroutine(value) for value in variables):
            continue  # another coroutine has its message now
        for message in _messages_in(variables):
            if id(message) not in seen:
                seen.add(id(message))
                yield message


def _task_number(task: asyncio.Task[Any]) -> int:
    """Return the number in a task's name: tasks are numbered as they are created."""
    number = task.get_name().rpartition("-")[2]
    return int(number) if number.isdigit() else 0


def _messages_in(values: Iterable[Any]) -> Iterator[list[zmq.Frame]]:
    for value in values:
        if isinstance(value, tuple):
            yield from _messages_in(value)
        elif isinstance(value, list) and value and all(isinstance(p, zmq.Frame) for p in value):
            yield value
