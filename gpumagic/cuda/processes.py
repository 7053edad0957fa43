"""The processes on a GPU by the system: user, command, notebook, and whether they are children.

Command lines contain tokens, paths and names of people, and notebooks are saved with their outputs.
So only the names of program and script are shown.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

from gpumagic.results.processes import Process
from gpumagic.system import system_files
from gpumagic.system.text import harmless

if TYPE_CHECKING:
    import psutil

#: Inode of the system's first pid namespace (PROC_PID_INIT_INO, include/linux/proc_ns.h): only in
#: that one are NVML's pids certain to be those of this process's namespace.
_FIRST_PID_NAMESPACE = 0xEFFFFFFC

#: The most characters of a name, and of a notebook's.
_NAME, _NOTEBOOK = 64, 200
#: The most bytes that are read of a command line.
_COMMAND_LINE = 4096
_PYTHON = re.compile(r"(python|pypy)w?[\d.]*t?d?(\.exe)?", re.IGNORECASE)
#: Python's command line after its name, with a NUL between words: options, then the code. Of the
#: options that Python exits with, or does not know, none matches.
_FLAGS = "[bBdEiIOPqRsStuvx]"
_CODE = re.compile(
    rf"(?:-{_FLAGS}+\0|-{_FLAGS}*[XW]\0?[^\0]+\0|--check-hash-based-pycs\0[^\0]+\0)*"
    rf"(?:-{_FLAGS}*(?:(?P<command>c)|m\0?(?P<module>[\w.]*))|(?P<script>[^-\0][^\0]*|-)(?:\0|$))"
)
#: The start of arguments that follow a name in the same word; a folder's name may have a blank.
_JOINED = re.compile(r"[^\S ]|\s-")


@cache
def in_first_pid_namespace() -> bool:
    """Return whether this process is in the system's first pid namespace, not a container's."""
    try:
        name = str(system_files.at("/proc/self/ns/pid").readlink())
    except OSError:
        return False
    return name == f"pid:[{_FIRST_PID_NAMESPACE}]"


def described(
    process: Process, *, known: bool, command: bool, children: dict[int, bool]
) -> Process:
    """Return a process that NVML lists, marked where it is this process or a child of it.

    With ``command`` also its user, command and notebook, as far as the system tells. ``known`` says
    whether NVML's pids are those of this process's namespace; if not, none is this process's.
    ``children`` is what one table finds of each process and its parents.
    """
    if not known:
        return replace(process, own=False, child=False)
    own = process.pid == os.getpid()
    found = replace(process, own=own, child=not own and _is_child(process.pid, children))
    return _with_command(found) if command else found


def _is_child(pid: int, children: dict[int, bool]) -> bool:
    """Return whether this process, or a child of it, has started another one of its namespace."""
    import psutil

    passed = []
    with suppress(psutil.Error):
        process: psutil.Process | None = psutil.Process(pid)
        while process is not None and process.pid not in {os.getpid(), *children}:
            passed.append(process.pid)
            process = process.parent()
        found = process is not None and (process.pid == os.getpid() or children[process.pid])
        children.update(dict.fromkeys(passed, found))
    return children.get(pid, False)


def _with_command(process: Process) -> Process:
    """Return a process of this pid namespace with its user and command, as far as they are read.

    Of other users' processes the notebook is not read.
    """
    import psutil

    try:
        found = psutil.Process(process.pid)
        with found.oneshot():
            user = harmless(found.username(), _NAME)
            command = harmless(command_name(*_command_line(found)))
            mine = found.uids().real == os.getuid()
            name = notebook(found) if mine or process.own else None
            return replace(process, user=user, command=command, mine=mine, notebook=name)
    except (psutil.Error, OSError, KeyError):
        return process


def _command_line(process: psutil.Process) -> tuple[list[str], str]:
    """Return the words of a process's command line, and its name by the system.

    Its user decides how long the former is: psutil reads all of it, also for a name.
    """
    folder = Path(f"/proc/{process.pid}")
    with (folder / "cmdline").open("rb") as file:
        words = file.read(_COMMAND_LINE).rstrip(b"\0")
    name = (folder / "comm").read_bytes().rstrip(b"\n")
    return [*map(os.fsdecode, words.split(b"\0") if words else ())], os.fsdecode(name)


def notebook(process: psutil.Process) -> str | None:
    """Return the name of the notebook of a process; None if it is no kernel, or not known.

    Jupyter puts the notebook's path into a kernel's environment when it starts the kernel: a later
    rename shows only after a restart. It may write an identifier instead.
    """
    import psutil

    try:
        path = process.environ().get("JPY_SESSION_NAME", "")
    except (psutil.Error, OSError):
        return None
    return harmless(PurePath(path).name, _NOTEBOOK) if path.endswith(".ipynb") else None


def command_name(words: Sequence[str], name: str) -> str:
    """Return the short command: ``python train.py``, ``python -m torch.distributed.run``, ``java``.

    ``words`` are the command line, which may be empty, and which a process can overwrite; ``name``
    is the process's name by the system.
    """
    program = _base(words[0] if words else name)
    if len(program.split()) > 1 or _JOINED.search(words[0] if words else name):
        # Set by the process, perhaps with everything in one word.
        return _base((name.split() or program.split() or [""])[0])[:_NAME]
    code = _CODE.match("\0".join(words[1:])) if _PYTHON.fullmatch(program) else None
    what = ""
    if code is not None and code["command"]:
        what = "-c"
    elif code is not None and code["module"] is not None:
        what = f"-m {code['module'][:_NAME]}"
    elif code is not None:
        script = _base(_JOINED.split(code["script"])[0])
        what = (script.split() or [""])[0][:_NAME]
    return f"{program[:_NAME]} {what}".strip()


def _base(word: str) -> str:
    return PurePath(word.replace("\\", "/")).name or word
