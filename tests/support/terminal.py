"""IPython in a terminal of its own."""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pexpect

from tests.support.shells import PLAIN

_PROMPT = r"In \[(\d+)\]: $"
_CONTINUATION = r"   \.\.\.: $"
#: A safety net, not a measure: a machine may be slow.
_PATIENCE = 400


class Terminal:
    """``ipython`` in a pseudo-terminal, 100 columns wide, in which ``kind`` has no colours."""

    def __init__(
        self,
        environment: Mapping[str, str],
        cwd: Path,
        *arguments: str,
        columns: int = 100,
        kind: str = "dumb",
    ) -> None:
        options = ["--simple-prompt", "--no-banner", "--no-confirm-exit"]
        options += [f"--colors={PLAIN}"] if kind == "dumb" else []
        self.process: Any = pexpect.spawn(
            sys.executable,
            ["-m", "IPython", *options, *arguments],
            env={**environment, "TERM": kind},
            cwd=str(cwd),
            encoding="utf-8",
            echo=False,
            timeout=_PATIENCE,
            dimensions=(50, columns),
        )
        self.process.expect(_PROMPT)

    def run(self, source: str, *, timeout: float = _PATIENCE) -> str:
        """Type a cell and return what appeared before the next prompt, as plain text."""
        self.begin(source)
        shown = self.finish(timeout=timeout)
        return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown).replace("\r\n", "\n").strip()

    def begin(self, source: str) -> None:
        """Type a cell, and do not wait for its end."""
        lines = source.strip("\n").split("\n")
        for line in lines[:-1]:
            self.process.sendline(line)
            self.process.expect(_CONTINUATION)
        self.process.sendline(lines[-1])

    def finish(self, *, timeout: float = _PATIENCE) -> str:
        """Wait for the next prompt and return what the terminal was sent before it."""
        # A block, or a cell magic, ends with an empty line.
        while self.process.expect([_PROMPT, _CONTINUATION], timeout=timeout) == 1:
            self.process.sendline("")
        return self.process.before or ""

    def close(self) -> None:
        """End IPython, however long the machine takes over that; pexpect gives it 0.1 s."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        if not self.process.terminated:
            self.process.wait()
        self.process.close()
