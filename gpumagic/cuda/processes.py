"""Look up the users and commands of processes on a GPU.

Command lines contain tokens, paths and names of people, and notebooks are saved with their outputs.
So only the names of program and script are shown.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import PurePath

from gpumagic.results.processes import Process

#: The most characters of a name.
_NAME = 64
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


def with_command(process: Process) -> Process:
    """Return a process of this pid namespace with its user and command, as far as they are read."""
    import psutil

    try:
        found = psutil.Process(process.pid)
        with found.oneshot():
            user, command = found.username(), command_name(found.cmdline(), found.name())
            mine = found.uids().real == os.getuid() if hasattr(os, "getuid") else None
            return replace(process, user=user[:_NAME], command=command, mine=mine)
    except (psutil.Error, OSError, KeyError):
        return process


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
