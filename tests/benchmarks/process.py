"""Fresh processes to measure in: one script, run in turns with what it is compared with."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from tests.support import forks
from tests.support.kernels import python_environment

#: What each script begins with: a shell, as light as IPython gets, no history on disk.
_SHELL = """
import json, statistics, sys, time
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config
config = Config()
config.HistoryManager.enabled = False
ip = InteractiveShell.instance(config=config)
def seconds(call):
    started = time.perf_counter()
    call()
    return time.perf_counter() - started
def median(call, times):
    return statistics.median(seconds(call) for _ in range(times))
"""


def installed(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a process that keeps bytecode, as any installation does."""
    kept = python_environment(environment)
    kept.pop("PYTHONDONTWRITEBYTECODE", None)
    return kept


def script(source: str, environment: Mapping[str, str], *arguments: str) -> Any:
    """Run ``source`` behind `_SHELL` in a fresh Python; return its last printed line, JSON.

    Raises:
        AssertionError: the script failed; with its traceback.
    """
    command = [sys.executable, "-c", _SHELL + source, *arguments]
    return json.loads(forks.output(command, env=installed(environment)).splitlines()[-1])


def wall(command: Sequence[str], environment: Mapping[str, str]) -> float:
    """Seconds that a command takes from start to end.

    Raises:
        AssertionError: the command failed.
    """
    started = time.perf_counter()
    forks.output(command, env=installed(environment))
    return time.perf_counter() - started
