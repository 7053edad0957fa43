"""The stream of shell requests of a kernel's main thread. Imports nothing of gpumagic."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterable
from typing import Any

import zmq

#: One request, in its parts as zmq received them.
Message = list[bytes]


def request_stream(kernel: Any) -> Any:
    """Return the stream on which the kernel's main thread receives shell requests.

    Raises:
        AttributeError: this version of ipykernel has another way.
    """
    thread = getattr(kernel, "shell_channel_thread", None)
    if thread is None:
        return kernel.shell_stream
    return thread.manager._shell_channel_to_main.to_stream


def put(kernel: Any, messages: Iterable[Message]) -> None:
    """Give requests to the kernel, in order, as if they had just arrived; call in its main loop."""
    callback = request_stream(kernel)._recv_callback
    for message in messages:
        outcome = callback([zmq.Frame(part) for part in message])
        if inspect.isawaitable(outcome):
            hold(asyncio.ensure_future(outcome))


_tasks: set[asyncio.Future[Any]] = set()


def hold(task: asyncio.Future[Any]) -> None:
    """Refer to a task until it is done: event loops have only weak references."""
    _tasks.add(task)
    task.add_done_callback(_tasks.discard)
