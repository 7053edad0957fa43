"""Start the child processes: none of them runs, imports or loads what lies in the working folder.

The working folder may be shared, or a cloned repository: a ``torch.py`` there is not torch. Python
puts it on a child's path with ``-c`` and ``-m``, with an empty or relative entry of
``PYTHONPATH``, and the system's loader does the same for ``LD_LIBRARY_PATH``. So children work in
this Python's own folder, and such entries are left out where a child goes elsewhere.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import Any

#: Run first thing in a child: ``-P``, which does the same, came with Python 3.11.
WITHOUT_FOLDER = "import sys; sys.path[:] = [entry for entry in sys.path if entry]"

Done = subprocess.CompletedProcess[str]
Running = subprocess.Popen[str]
#: Where a program's output goes.
PIPE, NOWHERE = subprocess.PIPE, subprocess.DEVNULL
TimeoutExpired = subprocess.TimeoutExpired


def run(command: Sequence[str], environment: Mapping[str, str] | None, timeout: float) -> Done:
    """Run a program to its end, outside of the working folder; what it printed.

    Raises:
        OSError: it cannot be started.
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
    """Start a program, outside of the working folder or in the ``folder`` given, if it is there.

    In that folder, which a process was started in before, the environment means what it meant
    then. ``options`` are those of `subprocess.Popen`.

    Raises:
        OSError, TypeError, ValueError: it cannot be started.
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
    """The environment without what would be imported, or loaded, from wherever a child works."""
    found = _without_colours(environment)
    for name, separators in (("PYTHONPATH", os.pathsep), ("LD_LIBRARY_PATH", ":;")):
        if name in found:
            entries = re.split(f"[{separators}]", found.pop(name))
            absolute = [*filter(os.path.isabs, entries)]
            if absolute:
                found[name] = os.pathsep.join(absolute)
    return found


def _without_colours(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment with Python's tracebacks as they are: 3.13 and newer colour them.

    Also in a file, by ``FORCE_COLOR``, which ipykernel sets.
    """
    return {**environment, "PYTHON_COLORS": "0"}


def _not_debugged() -> AbstractContextManager[Any]:
    """A debugger that is attached would start our children under itself, waiting for a client."""
    monkey = sys.modules.get("_pydev_bundle.pydev_monkey")
    skip = getattr(monkey, "skip_subprocess_arg_patch", None)
    return nullcontext() if skip is None else skip()


#: What colours text in a terminal, or moves in it.
_ESCAPES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")


def reason(errors: str) -> str:
    """What a Python that has failed says of it, in a line: of its last error, if it names one."""
    lines = _ESCAPES.sub("", errors).strip().splitlines()
    named = [line for line in lines if "Error" in line or "error:" in line]
    return (named or lines or [""])[-1].strip()


class ChildTimeoutError(Exception):
    """A child took too long: why in words, and what it had printed."""

    def __init__(self, reason: str, output: str) -> None:
        super().__init__(reason)
        self.output = output


def python(
    source: str,
    *options: str,
    environment: Mapping[str, str] | None = None,
    timeout: float,
) -> Done:
    """Run ``source`` as the program of a fresh Python with these ``options``; see `run`."""
    program = f"{WITHOUT_FOLDER}; exec(compile({source!r}, '<gpumagic>', 'exec'))"
    return run([sys.executable, *options, "-c", program], environment, timeout)


def program(name: str, folders: Sequence[str]) -> str | None:
    """Find a program in the first of the ``folders`` that has it.

    Only absolute folders count: an empty or relative entry of ``PATH`` is the working folder, which
    on Windows `shutil.which` searches first in any case.
    """
    for folder in filter(os.path.isabs, folders):
        for ending in (".exe", ".bat", ".cmd") if os.name == "nt" else ("",):
            path = Path(folder) / f"{name}{ending}"
            with suppress(OSError, ValueError):  # a folder that may not be entered, or is no name
                if path.is_file() and os.access(path, os.X_OK):
                    return str(path)
    return None
