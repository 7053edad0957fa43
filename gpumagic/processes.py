"""What is told of a process on a GPU: whose it is, and what it runs, by name.

Command lines hold tokens, paths and people's names, and what is shown is saved in notebooks. So the
program's and the script's name is told; the arguments only of one's own processes, if asked for.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import PurePath
from typing import Any

from gpumagic.results import Process

#: So many processes of a device are looked up, those with the most memory.
_MOST = 200
#: Characters of a name, and of a command line with its arguments.
_NAME, _COMMAND = 64, 1000
#: Options of Python that take the next word.
_WITH_VALUE = ("--check-hash-based-pycs",)
_PYTHON = re.compile(r"(python|pypy)w?[\d.]*t?d?(\.exe)?")


def looked_up(
    listed: Sequence[Process], is_here: Callable[[int], bool], *, arguments: bool = False
) -> tuple[Process, ...]:
    """The processes with their users and commands, as far as they can be read.

    ``is_here`` tells whether a pid is surely that of the process that NVML means. With
    ``arguments`` one's own have their whole command line.
    """
    order = sorted(range(len(listed)), key=lambda place: -(listed[place].memory or 0))
    chosen = {*order[:_MOST]}
    return tuple(
        _looked_up(process, arguments)
        if place in chosen and process.own is not None and is_here(process.pid)
        else process
        for place, process in enumerate(listed)
    )


def _looked_up(process: Process, arguments: bool) -> Process:
    import psutil

    try:
        found = psutil.Process(process.pid)
        with found.oneshot():
            mine = _is_mine(found)
            words = found.cmdline()
            whole = " ".join(words)[:_COMMAND] if arguments and mine else ""
            command = whole or command_name(words, found.name())
            return replace(process, user=found.username()[:_NAME], command=command, mine=mine)
    except (psutil.Error, OSError, KeyError):
        return process


def _is_mine(found: Any) -> bool:
    """Whether a process of psutil's belongs to the user of this one."""
    if hasattr(os, "getuid"):
        return bool(found.uids().real == os.getuid())
    import psutil

    return bool(found.username() == psutil.Process().username())


def command_name(words: Sequence[str], name: str) -> str:
    """``python train.py``, ``python -m torch.distributed.run``, ``java``.

    ``words`` are its command line, which may be empty, or whatever it has made of it; ``name`` is
    what the system calls it.
    """
    program = _base(words[0]) if words else name
    if " " in program:  # a title of its own, which may have everything in one word
        program = (name.split() or [program.split()[0]])[0]
    program = program[:_NAME]
    if not _PYTHON.fullmatch(program.lower()):
        return program
    rest = iter(words[1:])
    for word in rest:
        if word == "-":
            return f"{program} -"
        if word.startswith("--"):
            if word in _WITH_VALUE:
                next(rest, None)
        elif not word.startswith("-"):
            return f"{program} {_base(word)[:_NAME]}".rstrip()
        else:
            found = _short_options(word, rest)
            if found is not None:
                return f"{program} {found}".rstrip()
    return program


def _short_options(word: str, rest: Iterator[str]) -> str | None:
    """What short options of Python's, which may be joined, say it runs: ``-c``, ``-m module``."""
    for place, letter in enumerate(word[1:], 2):
        if letter == "c":
            return "-c"
        if letter == "m":
            module = word[place:] or next(rest, "")
            return f"-m {module.split(' ')[0][:_NAME]}"
        if letter in "XW":  # takes what is left of the word, or the next one
            if not word[place:]:
                next(rest, None)
            return None
    return None


def _base(word: str) -> str:
    return PurePath(word.replace("\\", "/")).name or word
