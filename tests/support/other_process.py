"""Another Python process, beside the one that is tested."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from tests.support.device import ROOT


@contextmanager
def running(code: str, *arguments: str, env: Mapping[str, str] | None = None) -> Iterator[int]:
    """A process that has run ``code`` with these arguments, and ends with the block; its pid."""
    with subprocess.Popen(
        [sys.executable, "-c", f"{code}\nprint('ready', flush=True)\ninput()", *arguments],
        cwd=ROOT,
        env=env,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "ready\n"
        try:
            yield other.pid
        finally:
            other.communicate("\n")
