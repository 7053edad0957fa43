"""Other processes on a virtual GPU."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

GIB = 2**30


@contextmanager
def running(virtual_gpu: Any, *words: str, **options: Any) -> Iterator[int]:
    """Start a process with these arguments that uses GPU 0; yields its pid."""
    command = [sys.executable, "-c", "input()", *words]
    with subprocess.Popen(command, stdin=subprocess.PIPE, **options) as other:
        # It has begun before its arguments can be read.
        while sys.platform == "linux" and not Path(f"/proc/{other.pid}/cmdline").read_bytes():
            time.sleep(0.001)
        virtual_gpu.add_process(0, other.pid, GIB, "other")
        try:
            yield other.pid
        finally:
            other.communicate(b"\n")
