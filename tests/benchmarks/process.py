"""Fresh processes to measure in: one script, run in turns with what it is compared with."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from tests.support.kernels import python_environment

#: The beginning of a script that needs a shell: as light as IPython gets, no history on disk.
SHELL = """
import json, statistics, sys, time
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config
config = Config()
config.HistoryManager.enabled = False
ip = InteractiveShell.instance(config=config)
"""


def script(source: str, environment: Mapping[str, str], *arguments: str) -> Any:
    """Run ``source`` in a fresh Python; its last printed line is JSON, and is returned.

    Raises:
        RuntimeError: the script failed; with its traceback.
    """
    done = subprocess.run(
        [sys.executable, "-c", source, *arguments],
        # Bytecode is written, as in any installation: compiling is not what is measured.
        env={
            k: v
            for k, v in python_environment(environment).items()
            if k != "PYTHONDONTWRITEBYTECODE"
        },
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"a benchmark's script failed:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def reason(error: Exception) -> str:
    """The last line of an error, which is what a script said last."""
    return (str(error).strip().splitlines() or [type(error).__name__])[-1]


def wall(command: Sequence[str], environment: Mapping[str, str]) -> float:
    """Seconds that a command takes from start to end.

    Raises:
        RuntimeError: the command failed.
    """
    started = time.perf_counter()
    done = subprocess.run(
        command, env=dict(environment), capture_output=True, text=True, timeout=60, check=False
    )
    taken = time.perf_counter() - started
    if done.returncode:
        raise RuntimeError(f"{command} failed:\n{done.stdout}\n{done.stderr}")
    return taken
