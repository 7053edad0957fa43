"""Look up the users and commands of processes on a GPU.

Command lines contain tokens, paths and names of people, and notebooks are saved with their outputs.
So only the names of program and script are shown.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import PurePath
from typing import Any

from gpumagic.results import Process

#: The most processes of a device that are looked up: those with the most memory.
_MOST = 200
#: The most characters of a name.
_NAME = 64
#: Python's long options that take a value in the next word.
_WITH_VALUE = ("--check-hash-based-pycs",)
#: Python's short options without a value.
_FLAGS = "bBdEiIOPqRsStuvx"
#: The start of arguments that follow a name in the same word; a folder's name may have a blank.
_JOINED = re.compile(r"[^\S ]|\s-")
_PYTHON = re.compile(r"(python|pypy)w?[\d.]*t?d?(\.exe)?")


def look_up(listed: Sequence[Process], is_here: Callable[[int], bool]) -> tuple[Process, ...]:
    """Return the processes with their users and commands, as far as they can be read.

    ``is_here(pid)`` returns whether the process of that pid is certainly the one that NVML lists.
    """
    by_memory = sorted(range(len(listed)), key=lambda place: -(listed[place].memory or 0))
    chosen = {*by_memory[:_MOST]}
    return tuple(
        _with_command(process)
        if place in chosen and process.own is not None and is_here(process.pid)
        else process
        for place, process in enumerate(listed)
    )


def _with_command(process: Process) -> Process:
    import psutil

    try:
        found = psutil.Process(process.pid)
        with found.oneshot():
            mine = _is_mine(found)
            words = found.cmdline()
            command = command_name(words, found.name())
            return replace(process, user=found.username()[:_NAME], command=command, mine=mine)
    except (psutil.Error, OSError, KeyError):
        return process


def _is_mine(found: Any) -> bool:
    """Return whether a `psutil.Process` belongs to this process's user."""
    if hasattr(os, "getuid"):
        return bool(found.uids().real == os.getuid())
    import psutil

    return bool(found.username() == psutil.Process().username())


def command_name(words: Sequence[str], name: str) -> str:
    """Return the short command: ``python train.py``, ``python -m torch.distributed.run``, ``java``.

    ``words`` are the command line, which may be empty, and which a process can overwrite; ``name``
    is the process's name by the system.
    """
    first = words[0] if words else name
    program = _base(first)
    title = _JOINED.search(first) is not None or len(program.split()) > 1
    if title:  # set by the process, perhaps with everything in one word
        program = _base((name.split() or first.split() or [""])[0])
    program = program[:_NAME]
    if title or not _PYTHON.fullmatch(program.lower()):
        return program
    rest = iter(words[1:])
    for word in rest:
        if word == "-":
            return f"{program} -"
        if word.startswith("--"):
            if word not in _WITH_VALUE:  # all others exit Python, or are none of its options
                return program
            next(rest, None)
        elif not word.startswith("-"):
            return f"{program} {_file_name(word)[:_NAME]}".rstrip()
        else:
            found = _short_options(word, rest)
            if found is not None:
                return f"{program} {found}".rstrip()
    return program


def _short_options(word: str, rest: Iterator[str]) -> str | None:
    """Return the code that Python's short options name: ``-c``, ``-m module``; they may be joined.

    None if the next word names it, ``""`` if it is not known.
    """
    for place, letter in enumerate(word[1:], 2):
        if letter == "c":
            return "-c"
        if letter == "m":
            module = word[place:] or next(rest, "")
            return f"-m {(module.split() or [''])[0][:_NAME]}"
        if letter in "XW":  # takes the rest of the word, or the next one
            if not word[place:]:
                next(rest, None)
            return None
        if letter not in _FLAGS:
            return ""
    return None


def _file_name(word: str) -> str:
    """Return the file name of a script, without arguments in the same word."""
    return (_base(_JOINED.split(word)[0]).split() or [""])[0]


def _base(word: str) -> str:
    return PurePath(word.replace("\\", "/")).name or word
