"""All tests, spread over the cores by pytest-xdist. Arguments go to pytest; a path is just that.

Each worker has a virtual GPU, a template of kernels and ports of its own: see `tests.support`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path

from tests.support.device import ROOT

#: How many workers, and what each has, says `tests.conftest`, in whose order the tests are begun.
SPREAD = ("-n", "auto", "--no-loadscope-reorder", "--max-worker-restart=0", "--durations=15")
#: Options whose value may be the name of a file or folder.
_WITH_VALUE = ("-k", "-m", "-p", "-c", "-o", "--ignore", "--ignore-glob", "--deselect")


def command(arguments: Sequence[str]) -> list[str]:
    """Return the command line of pytest for these arguments."""
    pytest = [sys.executable, "-m", "pytest"]
    words = [word for before, word in pairwise(["", *arguments]) if before not in _WITH_VALUE]
    if not any(Path(word.split("::")[0]).exists() for word in words):
        pytest += SPREAD
    return [*pytest, *arguments]


def compile_files(environment: Mapping[str, str]) -> None:
    """Compile the package, and the tests as pytest does, where this Python has not done it yet.

    Each worker would: 15 s of processor, all together, for each of them.
    """
    compiled = f"conftest.{sys.implementation.cache_tag}-pytest-*.pyc"
    if any((ROOT / "tests" / "__pycache__").glob(compiled)):
        return
    files = sorted(map(str, (ROOT / "tests").rglob("test_*.py")))
    cores = len(os.sched_getaffinity(0))
    collect = [sys.executable, "-m", "pytest", "--collect-only", "-qq"]
    commands = [[sys.executable, "-m", "compileall", "-q", "gpumagic"]]
    commands += [[*collect, *files[core::cores]] for core in range(cores)]
    silent = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    started = [subprocess.Popen(c, cwd=ROOT, env=environment, **silent) for c in commands]
    for each in started:
        each.wait()  # whatever has gone wrong, pytest itself will say


def environment() -> dict[str, str]:
    """Return this process's, but let Python write compiled files: many kernels are started.

    And let it keep assertions.
    """
    not_ours = ("PYTHONDONTWRITEBYTECODE", "PYTHONOPTIMIZE")
    return {k: v for k, v in os.environ.items() if k not in not_ours}


if __name__ == "__main__":
    try:
        words = command(sys.argv[1:])
        if "-n" in words:
            compile_files(environment())
        sys.exit(subprocess.call(words, cwd=ROOT, env=environment()))
    except KeyboardInterrupt:
        sys.exit(130)  # pytest was interrupted too, and has said so
