"""Start child processes that run, import and load no file of the working folder.

The working folder may be shared, or a cloned repository: a ``torch.py`` there is not torch. Python
adds it to the import path for ``-c`` and an empty or relative entry of ``PYTHONPATH``; the dynamic
linker searches it for such an entry of ``LD_LIBRARY_PATH``. Child processes therefore run in the
folder of this Python, without such entries.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import IO, Any, cast

from gpumagic.system import import_path

#: The first statement of a child's program: ``-P``, which does the same, needs Python 3.11.
REMOVE_WORKING_FOLDER = "import sys; sys.path[:] = [entry for entry in sys.path if entry]"

TimeoutExpired = subprocess.TimeoutExpired


def run(
    command: Sequence[str], environment: Mapping[str, str], timeout: float
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end, outside the working folder, and return its output.

    It is killed where this is interrupted.

    Raises:
        OSError, TypeError, ValueError: the process cannot be started.
        TimeoutExpired: it took longer than ``timeout`` seconds, and was killed.
    """
    with _not_debugged():
        return subprocess.run(
            command,
            **_elsewhere(environment),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            errors="replace",
            timeout=timeout,
            check=False,
        )


def python(
    source: str, environment: Mapping[str, str], timeout: float
) -> subprocess.CompletedProcess[str]:
    """Run ``source`` in a new Python process; see `run`."""
    return run(_python(source), environment, timeout)


@contextmanager
def conversation(
    source: str, *arguments: str, environment: Mapping[str, str], **more: Any
) -> Iterator[subprocess.Popen[bytes]]:
    """Run ``source`` in a new Python process with pipes to it and from it, until the scope ends.

    Then it is killed, with its own children. A terminal's interrupt does not reach them. ``more``
    are options of `subprocess.Popen`.
    """
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    options = {**_elsewhere(environment), **pipes, "start_new_session": True, **more}
    with _not_debugged():
        process = subprocess.Popen(_python(source, *arguments), **options)
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for pipe in (process.stdin, process.stdout):
            with suppress(OSError):  # of what it has not read
                cast("IO[bytes]", pipe).close()


def _python(source: str, *arguments: str) -> list[str]:
    program = f"{REMOVE_WORKING_FOLDER}; exec(compile({source!r}, '<gpumagic>', 'exec'))"
    return [sys.executable, "-c", program, *arguments]


def _elsewhere(environment: Mapping[str, str]) -> dict[str, Any]:
    """Return the options of `subprocess` for a process outside the working folder.

    Python's coloured tracebacks (3.13 and newer) are turned off: ``FORCE_COLOR``, which ipykernel
    sets, would colour them in a pipe too.
    """
    absolute = {**import_path.absolute(environment), "PYTHON_COLORS": "0"}
    return {"cwd": sys.prefix, "env": absolute}


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
