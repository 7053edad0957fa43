"""All tests, spread over the cores by pytest-xdist. Arguments go to pytest; a path is just that.

Each worker has a virtual GPU, a template of kernels and ports of its own: see `tests.support`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.support.device import ROOT

#: Workers on each core: a test waits half of its time, for what other processes do.
_ON_A_CORE = 2
#: A worker and its kernels take about 2 GB.
_MOST = 8


def command(arguments: Sequence[str]) -> list[str]:
    """The command line of pytest for these arguments."""
    whole = [sys.executable, "-m", "pytest"]
    if not any(Path(word.split("::")[0]).exists() for word in arguments):
        workers = min(_ON_A_CORE * len(os.sched_getaffinity(0)), _MOST)
        whole += ["-n", str(workers), "--dist", "loadgroup", "--times"]
    return [*whole, *arguments]


def environment() -> dict[str, str]:
    """That of this process, but that Python keeps what it has compiled: kernels are many."""
    return {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}


if __name__ == "__main__":
    try:
        sys.exit(subprocess.call(command(sys.argv[1:]), cwd=ROOT, env=environment()))
    except KeyboardInterrupt:
        sys.exit(130)  # pytest was interrupted too, and has said so
