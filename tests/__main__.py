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

#: Workers for each core: a test waits half of its time for other processes.
_ON_A_CORE = 3
#: The most workers: each takes more than 1 GB with its kernels, which share one template.
_MOST = 8


def command(arguments: Sequence[str]) -> list[str]:
    """Return the command line of pytest for these arguments."""
    pytest = [sys.executable, "-m", "pytest"]
    if not any(Path(word.split("::")[0]).exists() for word in arguments):
        workers = min(_ON_A_CORE * len(os.sched_getaffinity(0)), _MOST)
        pytest += ["-n", str(workers), "--dist", "loadgroup", "--times"]
    return [*pytest, *arguments]


def environment() -> dict[str, str]:
    """Return this process's, but let Python write compiled files: many kernels are started."""
    return {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}


if __name__ == "__main__":
    try:
        sys.exit(subprocess.call(command(sys.argv[1:]), cwd=ROOT, env=environment()))
    except KeyboardInterrupt:
        sys.exit(130)  # pytest was interrupted too, and has said so
