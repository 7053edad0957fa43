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
#: Its short options after which the next word is still what it runs.
_FLAGS = "bBdEiIOPqRsStuvx"
#: Where arguments begin that are joined to a name in one word; a blank may be in a folder's name.
_JOINED = re.compile(r"[^\S ]|\s-")
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
    first = words[0] if words else name
    program = _base(first)
    title = _JOINED.search(first) is not None or len(program.split()) > 1
    if title:  # of its own, which may have everything in one word
        program = _base((name.split() or first.split() or [""])[0])
    program = program[:_NAME]
    if title or not _PYTHON.fullmatch(program.lower()):
        return program
    rest = iter(words[1:])
    for word in rest:
        if word == "-":
            return f"{program} -"
        if word.startswith("--"):
            if word not in _WITH_VALUE:  # all others end Python, or are none of its own
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
    """What short options of Python's, which may be joined, say it runs: ``-c``, ``-m module``.

    None if they leave that to the next word, ``""`` if it is not known.
    """
    for place, letter in enumerate(word[1:], 2):
        if letter == "c":
            return "-c"
        if letter == "m":
            module = word[place:] or next(rest, "")
            return f"-m {(module.split() or [''])[0][:_NAME]}"
        if letter in "XW":  # takes what is left of the word, or the next one
            if not word[place:]:
                next(rest, None)
            return None
        if letter not in _FLAGS:
            return ""
    return None


def _file_name(word: str) -> str:
    """The name of a script, without what is joined to it."""
    return (_base(_JOINED.split(word)[0]).split() or [""])[0]


def _base(word: str) -> str:
    return PurePath(word.replace("\\", "/")).name or word
