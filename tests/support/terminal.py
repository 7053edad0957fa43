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
from tests.support.waiting import PATIENCE

_PROMPT = r"In \[(\d+)\]: $"
_CONTINUATION = r"   \.\.\.: $"


class Terminal:
    """``ipython`` in a pseudo-terminal without colours, 100 columns wide."""

    def __init__(self, environment: Mapping[str, str], cwd: Path) -> None:
        options = ["--simple-prompt", "--no-banner", "--no-confirm-exit", f"--colors={PLAIN}"]
        self.process: Any = pexpect.spawn(
            sys.executable,
            ["-m", "IPython", *options],
            env={**environment, "TERM": "dumb"},
            cwd=str(cwd),
            encoding="utf-8",
            echo=False,
            timeout=PATIENCE,
            dimensions=(50, 100),
        )
        self.process.expect(_PROMPT)

    def run(self, source: str) -> str:
        """Type a cell and return what appeared before the next prompt, as plain text."""
        lines = source.strip("\n").split("\n")
        for line in lines[:-1]:
            self.process.sendline(line)
            self.process.expect(_CONTINUATION)
        self.process.sendline(lines[-1])
        # A block, or a cell magic, ends with an empty line.
        while self.process.expect([_PROMPT, _CONTINUATION]) == 1:
            self.process.sendline("")
        shown = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", self.process.before or "")
        return shown.replace("\r\n", "\n").strip()

    def close(self) -> None:
        """End IPython, however long the machine takes over that; pexpect gives it 0.1 s."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        if not self.process.terminated:
            self.process.wait()
        self.process.close()
