"""The restart in place: real kernels, real clients."""

from __future__ import annotations

import queue
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import IPython

from tests.support.kernels import PATIENCE, Kernel

#: Initialises the CUDA driver, which makes any other choice too late; without the cost of torch.
FREEZE = "import ctypes; assert ctypes.CDLL('libcuda.so.1').cuInit(0) == 0"
#: What a new process sees, in a cell that prints it.
SEES = "import os; print(os.environ.get('CUDA_VISIBLE_DEVICES'), 'gone' in globals())"
#: IPython 7 asks for a module that Python 3.12 does not have.
AUTORELOAD = IPython.version_info >= (8,) or sys.version_info < (3, 12)
PID = "__import__('os').getpid()"


@dataclass
class Answer:
    """What a client has received for one request."""

    text: str = ""
    #: The text when the kernel said that it had ended.
    at_idle: str = ""
    idle: int = 0
    busy: int = 0
    status: str = ""
    count: int | None = None
    error: str = ""
    figures: int = 0
    #: Its place among the replies.
    order: int = -1

    @property
    def is_fine(self) -> bool:
        """Whether it ended once, without an error, and with nothing behind its end."""
        once = self.busy > 0 and self.idle == 1
        return once and self.status == "ok" and not self.error and self.at_idle == self.text


def answers(client: Any, requests: Sequence[str], other: Any = None) -> list[Answer]:
    """Collect what is sent for some requests until all are answered, and a little longer.

    ``other`` is another client, whose requests those are that it has sent: it must be asked all the
    time, since zmq subscribes anew only then.
    """
    found = {request: Answer() for request in requests}
    clients = (client,) if other is None else (client, other)
    replies, deadline, ended = 0, time.monotonic() + PATIENCE, None
    while ended is None or time.monotonic() < ended + 0.2:
        waiting = {
            n: each for n, each in enumerate(found.values()) if not each.status or not each.idle
        }
        assert time.monotonic() < deadline, waiting
        for each, message in _received(clients):
            parent = message["parent_header"]
            answer = found.get(parent.get("msg_id", ""))
            if answer is not None and parent["session"] == each.session.session:
                _add(answer, message["msg_type"], message["content"], replies)
                replies += message["msg_type"].endswith("_reply")
        if ended is None and not waiting:
            ended = time.monotonic()
    return [*found.values()]


def _received(clients: Sequence[Any]) -> Iterator[tuple[Any, Any]]:
    """All that has come for these clients; where nothing has, in the next 10 ms."""
    for client in clients:
        for receive in (client.get_shell_msg, client.get_iopub_msg):
            with suppress(queue.Empty):
                while True:
                    yield client, receive(timeout=0.01)


def _add(answer: Answer, kind: str, content: dict[str, Any], replies: int) -> None:
    if kind == "status":
        state = content["execution_state"]
        answer.busy += state == "busy"
        answer.idle += state == "idle"
        answer.at_idle = answer.text
    elif kind == "stream":
        answer.text += content["text"]
    elif kind in ("execute_result", "display_data"):
        answer.figures += "image/png" in content["data"]
        answer.text += content["data"].get("text/plain", "")
    elif kind == "error":
        answer.error += f"{content['ename']}: {content['evalue']}"
    elif kind.endswith("_reply"):
        answer.status, answer.count = content["status"], content.get("execution_count")
        answer.order = replies


def run_all(kernel: Kernel, *cells: str) -> list[Answer]:
    """Send all cells at once, as Run All does, and wait for the answers."""
    return answers(kernel.client, [kernel.submit(cell) for cell in cells])


def restarted(kernel: Kernel, line: str) -> str:
    """Restart, and return what is shown and all that the result has, as one line of text."""
    shown = kernel.run(f"report_ = {line} -o").text
    return " ".join([*shown.split(), *" ".join(kernel.value("report_.notes")).split()])


def report(shown: str) -> str:
    """What a restart reports, in one line: text in a narrow terminal is folded."""
    begins = shown.find("restarted: ")
    assert begins >= 0, shown
    return shown[begins:]
