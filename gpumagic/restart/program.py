"""Whether the program of this process can be executed again, and by which command line."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from gpumagic.errors import RestartError
from gpumagic.restart import ports
from gpumagic.system import import_path, text
from gpumagic.system.shell import Shell

#: The option that names the connection file, before it or with it.
_CONNECTION = ("-f", "--f", "--IPKernelApp.connection_file")
#: The bytes of all that Linux gives a program at most, whatever its stack may take (fs/exec.c); and
#: those of what a restart adds.
_MOST, _ADDED = 6 * 1024**2, 4096


def application(shell: Shell) -> Any:
    """Return IPython's application that runs ``shell``; None if another program does."""
    app = getattr(getattr(shell, "kernel", shell), "parent", None)
    return app if getattr(app, "shell", None) is shell and hasattr(app, "argv") else None


def check(shell: Shell) -> None:
    """Return if the program can be executed again.

    Raises:
        RestartError: it cannot, and why.
    """
    app = application(shell)
    if app is None:
        raise RestartError(
            "only a Jupyter kernel or IPython in a terminal of its own can be restarted in place"
        )
    given = list(app.argv)
    program = Path(sys.orig_argv[-1]).stem.lower()
    if given != sys.orig_argv[len(sys.orig_argv) - len(given) :] or not (
        given or program.startswith("ipython")
    ):
        raise RestartError("this shell is part of another program, which would start again")
    if app.file_to_run or app.code_to_run or app.module_to_run:
        raise RestartError(
            "IPython has run a file or a command at its start, which would be run again: make the "
            "choice at its top, or start it with CUDA_VISIBLE_DEVICES"
        )
    _check_is_found(sys.orig_argv[: len(sys.orig_argv) - len(given)], shell.starting_dir)
    if not sys.executable or not os.access(sys.executable, os.X_OK):
        raise RestartError(f"the Python interpreter cannot be started again: {sys.executable!r}")


def check_environment(environment: Mapping[str, str]) -> None:
    """Return if a program can be executed with these variables.

    By Linux's ``execve(2)``: a string has 32 pages at most, and each costs a pointer more.

    Raises:
        RestartError: it cannot; which variable is too long, or the longest.
    """
    sizes = {name: len(os.fsencode(f"{name}={each}")) + 1 for name, each in environment.items()}
    longest = max(sizes, key=sizes.__getitem__, default="")
    size, most = sizes.get(longest, 0), 32 * os.sysconf("SC_PAGE_SIZE")
    words = "has"
    if size <= most:
        size = sum(sizes.values()) + 8 * len(sizes)
        most = min(os.sysconf("SC_ARG_MAX"), _MOST) - _ADDED
        most -= sum(len(os.fsencode(each)) + 9 for each in sys.orig_argv)
        words = "is the longest of all, which have"
    if size > most:
        name = text.harmless(longest, text.REASON)
        raise RestartError(
            f"the environment variable {name} {words} {size:,} bytes, and a new process takes "
            f"{most:,}: delete it first (del os.environ[{name!r}])"
        )


def _check_is_found(words: Sequence[str], folder: str) -> None:
    """Return if Python finds the program, a module or a file, when it starts in another folder.

    Raises:
        RestartError: it does not; the process would end.
    """
    name, places = words[-1], import_path.trusted(sys.path, folder)
    if words[-2:-1] == ["-m"]:
        is_there = any(  # another finder is that of a package which is developed elsewhere
            each.find_spec(name.partition(".")[0], places if each is PathFinder else None)
            for each in sys.meta_path
        )
    else:
        is_there = name.startswith("-") or Path(folder, name).exists()
    if not is_there:
        raise RestartError(
            f"{name}, which has started this process, is found in {folder} alone, if it is still "
            "there: restart the notebook process (Kernel > Restart)"
        )


def command(app: Any, extension: str) -> list[str]:
    """Return the command line of this process, with ``extension`` as the last one to be loaded.

    The user's own are given again: a list on the command line replaces that of a config file.
    """
    name = "IPKernelApp" if hasattr(app, "kernel") else "TerminalIPythonApp"
    option = f"--{name}.extra_extensions="
    added = [option + each for each in app.extra_extensions if each != extension]
    added.append(option + extension)
    given = _from_anywhere(sys.orig_argv[1:], len(app.argv), app.shell.starting_dir)
    if not hasattr(app, "kernel"):
        added.append(f"--{name}.display_banner=False")
    else:
        given = [
            word
            for before, word in zip(["", *given], given, strict=False)
            if before not in _CONNECTION and word.partition("=")[0] not in _CONNECTION
        ]
        # A name alone ipykernel looks for in the working folder first.
        added += ["-f", str(Path(app.shell.starting_dir, app.abs_connection_file))]
        added.append(ports.option())
    given = [word for word in given if word not in added and not word.startswith(option)]
    return [sys.executable, *given, *added]


def _from_anywhere(words: Sequence[str], arguments: int, folder: str) -> list[str]:
    """Return a command line, of which the last words are ``arguments``, for another folder."""
    found, last = [*words], len(words) - arguments - 1
    if last == 0 or (last > 0 and words[last - 1] not in ("-m", "-c")):  # the program's file
        path = Path(folder, words[last])
        if path.exists():
            found[last] = str(path)
    return found
