"""Start child processes that run, import and load no file of the working folder.

The working folder may be shared, or a cloned repository: a ``torch.py`` there is not torch. Python
adds it to the import path for ``-c``, ``-m`` and an empty or relative entry of ``PYTHONPATH``; the
dynamic linker searches it for such an entry of ``LD_LIBRARY_PATH``. Child processes therefore run
in the folder of this Python, without such entries.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

#: The first statement of a child's program: ``-P``, which does the same, needs Python 3.11.
REMOVE_WORKING_FOLDER = "import sys; sys.path[:] = [entry for entry in sys.path if entry]"

Done = subprocess.CompletedProcess[str]
Running = subprocess.Popen[str]
#: The values for a program's ``stdout`` and ``stderr``.
PIPE, DEVNULL = subprocess.PIPE, subprocess.DEVNULL
TimeoutExpired = subprocess.TimeoutExpired


def run(command: Sequence[str], environment: Mapping[str, str] | None, timeout: float) -> Done:
    """Run a program to its end, outside the working folder, and return its output.

    Raises:
        OSError: the program cannot be started.
        ChildTimeoutError: it took longer than ``timeout`` seconds.
    """
    try:
        with _not_debugged():
            return subprocess.run(
                command,
                cwd=sys.prefix,
                env=_absolute(os.environ if environment is None else environment),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=timeout,
                check=False,
            )
    except subprocess.TimeoutExpired as error:
        raw = error.stdout or b""
        output = raw.decode(errors="replace") if isinstance(raw, bytes) else raw
        raise ChildTimeoutError(f"no answer in {timeout:.0f} s", output) from None


def start(
    command: Sequence[str],
    environment: Mapping[str, str],
    folder: str | None = None,
    **options: Any,
) -> Running:
    """Start a program in ``folder`` if that exists, else outside the working folder.

    In ``folder``, relative entries of the environment are kept: another process has started there
    with them before. ``options`` are those of `subprocess.Popen`.

    Raises:
        OSError, TypeError, ValueError: the program cannot be started.
    """
    outside = folder is None or not Path(folder).is_dir()
    with _not_debugged():
        return subprocess.Popen(
            command,
            cwd=sys.prefix if outside else folder,
            env=_absolute(environment) if outside else _without_colours(environment),
            stdin=subprocess.DEVNULL,
            errors="replace",
            **options,
        )


def _absolute(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment without relative entries of the import and library paths."""
    found = _without_colours(environment)
    for name, separators in (("PYTHONPATH", os.pathsep), ("LD_LIBRARY_PATH", ":;")):
        if name in found:
            entries = re.split(f"[{separators}]", found.pop(name))
            absolute = [*filter(os.path.isabs, entries)]
            if absolute:
                found[name] = os.pathsep.join(absolute)
    return found


def _without_colours(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment with Python's coloured tracebacks (3.13 and newer) turned off.

    ``FORCE_COLOR``, which ipykernel sets, would colour them in a pipe too.
    """
    return {**environment, "PYTHON_COLORS": "0"}


def _not_debugged() -> AbstractContextManager[Any]:
    """Return a context in which an attached debugger does not attach to child processes."""
    monkey = sys.modules.get("_pydev_bundle.pydev_monkey")
    skip = getattr(monkey, "skip_subprocess_arg_patch", None)
    return nullcontext() if skip is None else skip()


def last_error(stderr: str) -> str:
    """Return the last line of Python's standard error that names an error, else the last line."""
    lines = stderr.strip().splitlines()
    named = [line for line in lines if "Error" in line or "error:" in line]
    return (named or lines or [""])[-1].strip()


class ChildTimeoutError(Exception):
    """A child process exceeded its timeout; ``output`` is what it wrote until then."""

    def __init__(self, reason: str, output: str) -> None:
        super().__init__(reason)
        self.output = output


def python(
    source: str,
    *options: str,
    environment: Mapping[str, str] | None = None,
    timeout: float,
) -> Done:
    """Run ``source`` in a new Python process with these ``options``; see `run`."""
    program = f"{REMOVE_WORKING_FOLDER}; exec(compile({source!r}, '<gpumagic>', 'exec'))"
    return run([sys.executable, *options, "-c", program], environment, timeout)
