"""The nanny of an ipyparallel engine, forked before the engine runs instead of started by it.

An engine starts a process that relays signals and reports its end; that imports ipyparallel again.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Sequence
from subprocess import TimeoutExpired
from typing import Any


class ForkedNanny:
    """A fork that waits for what `ipyparallel.engine.nanny` writes to its standard input.

    With as much of the interface of `subprocess.Popen` as engines and gpumagic use.
    """

    def __init__(self) -> None:
        requests, stdin = os.pipe()
        stdout, answers = os.pipe()
        self.returncode: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            os.close(stdin)
            os.close(stdout)
            _be_nanny(requests, answers)
        os.close(requests)
        os.close(answers)
        self.stdin = os.fdopen(stdin, "wb")
        self.stdout = os.fdopen(stdout, "rb")

    def poll(self) -> int | None:
        if self.returncode is None:
            ended, status = os.waitpid(self.pid, os.WNOHANG)
            if ended:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        deadline = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if deadline is not None and time.monotonic() > deadline:
                raise TimeoutExpired("nanny", timeout or 0)
            time.sleep(0.005)
        return code

    def terminate(self) -> None:
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        self._signal(signal.SIGKILL)

    def _signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)


def _be_nanny(requests: int, answers: int) -> None:
    """Become what ``python -m ipyparallel.engine.nanny`` is, in a session of its own; ends."""
    try:
        from ipyparallel.engine import nanny

        os.setsid()
        os.dup2(requests, 0)
        os.dup2(answers, 1)
        os.closerange(3, max(requests, answers) + 1)
        sys.stdin = open(0, closefd=False)  # noqa: SIM115
        sys.stdout = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115
        nanny.main()
    except EOFError:
        pass  # the engine ended before it wanted a nanny
    finally:
        os._exit(0)


def prepare() -> None:
    """Fork the nanny of this process, which is about to become an engine."""
    from ipyparallel.engine import nanny

    ready, start = [ForkedNanny()], nanny.Popen

    def popen(command: Sequence[str], **options: Any) -> Any:
        if ready and list(command[1:]) == ["-m", nanny.__name__]:
            return ready.pop()
        return start(command, **options)

    nanny.Popen = popen
