"""Other processes on a virtual GPU."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

GIB = 2**30


@contextmanager
def running(virtual_gpu: Any, *words: str, **options: Any) -> Iterator[int]:
    """Start a process with these arguments that uses GPU 0; yields its pid."""
    command = [sys.executable, "-c", "input()", *words]
    with subprocess.Popen(command, stdin=subprocess.PIPE, **options) as other:
        virtual_gpu.add_process(0, other.pid, GIB, "other")
        try:
            yield other.pid
        finally:
            other.communicate(b"\n")
