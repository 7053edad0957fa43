"""Where a kernel's main thread is handed its shell requests. Needs nothing else of gpumagic."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterable
from typing import Any

import zmq

#: One request as it came over the wire.
Message = list[bytes]


def inbox(kernel: Any) -> Any:
    """The stream on which the kernel's main thread is handed its shell requests.

    Raises:
        AttributeError: this ipykernel does it in a way that is not known here.
    """
    thread = getattr(kernel, "shell_channel_thread", None)
    if thread is None:
        return kernel.shell_stream
    return thread.manager._shell_channel_to_main.to_stream


def put(kernel: Any, messages: Iterable[Message]) -> None:
    """Hand requests to the kernel, in order, as if they had just arrived. In its main loop."""
    callback = inbox(kernel)._recv_callback
    for message in messages:
        outcome = callback([zmq.Frame(part) for part in message])
        if inspect.isawaitable(outcome):
            keep(asyncio.ensure_future(outcome))


_tasks: set[asyncio.Future[Any]] = set()


def keep(task: asyncio.Future[Any]) -> None:
    """Hold a task until it is done: loops do so only weakly."""
    _tasks.add(task)
    task.add_done_callback(_tasks.discard)
