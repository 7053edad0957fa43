"""The command line with which a process executes itself again, and a trial of it in a child."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gpumagic._version import __version__
from gpumagic.errors import RestartError
from gpumagic.system import child_process, text

LOADER = str(Path(__file__).with_name("loader.py"))

#: Seconds for a child to import what the new process will need.
_TIMEOUT = 60.0


def command(app: Any) -> list[str]:
    """Return the command line of this process, to be run by `loader`.

    Raises:
        RestartError: it cannot be executed again.
    """
    check_interpreter()
    given = list(app.argv)
    as_given = sys.orig_argv[len(sys.orig_argv) - len(given) :] == given
    if not as_given or (not given and not _is_app()):
        raise RestartError(
            "this shell is embedded in another program, which would start from its beginning"
        )
    if not getattr(app, "interact", True):
        raise RestartError(
            "this is a script (ipython FILE), of which nothing would be run again: make the choice "
            "at its top, or start it with CUDA_VISIBLE_DEVICES"
        )
    options, program = split(sys.orig_argv[1:])
    return [sys.executable, *options, LOADER, *program]


def check_interpreter() -> None:
    """Return if Python can be executed again.

    Raises:
        RestartError: it cannot.
    """
    if sys.platform == "win32":
        raise RestartError("Windows cannot replace a running process: restart it by hand")
    if not sys.executable or not os.access(sys.executable, os.X_OK):
        raise RestartError(f"the Python interpreter cannot be executed again: {sys.executable!r}")


def _is_app() -> bool:
    """Return whether the command is IPython's or ipykernel's own."""
    names = ("ipython", "ipython3", "IPython", "ipykernel", "ipykernel_launcher", "jupyter-kernel")
    return Path(sys.orig_argv[-1]).stem in names


def split(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split Python's own options from the program: ``-m module``, ``-c code`` or a script."""
    options: list[str] = []
    left = list(words)
    while left and left[0].startswith("-") and left[0] != "-":
        word = left.pop(0)
        if word.startswith("--"):
            options.append(word)
            if word == "--check-hash-based-pycs":
                options.append(left.pop(0))
            continue
        for position, option in enumerate(word[1:], 1):
            if option in "mc":
                if word[1:position]:
                    options.append(word[:position])
                rest = word[position + 1 :]
                return options, [f"-{option}", *([rest] if rest else []), *left]
            if option in "XW":
                options.append(word)
                if position == len(word) - 1:
                    options.append(left.pop(0))
                break
        else:
            options.append(word)
    return options, left


class Trial:
    """A child process with the new options and environment that tries the imports of the restart.

    It starts at once, `result` waits for it, and it is killed when the block is left.
    """

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str], what: str, folder: str
    ) -> None:
        position = command.index(LOADER) + 1
        try:
            self._child = child_process.start(
                [*command[:position], "--check", what],
                environment,
                folder,
                stdout=child_process.PIPE,
                stderr=child_process.PIPE,
                # An interrupt from the terminal must not reach it.
                start_new_session=True,
            )
        except (OSError, ValueError, TypeError) as error:
            raise RestartError(f"Python cannot be started again: {error}") from None

    def __enter__(self) -> Trial:
        return self

    def __exit__(self, *_: object) -> None:
        if self._child.poll() is None:
            self._child.kill()
        self._child.communicate()

    def result(self) -> None:
        """Return if the new process will be able to import what it needs.

        Raises:
            RestartError: it will not.
        """
        try:
            printed, errors = self._child.communicate(timeout=_TIMEOUT)
        except child_process.TimeoutExpired:
            raise RestartError(
                "a Python with the new environment does not start within a minute"
            ) from None
        if self._child.returncode:
            said = child_process.last_error(errors) or f"status {self._child.returncode}"
            raise RestartError(f"the new process would not start: {text.reason(said)}")
        found = (printed.strip().splitlines() or ["none"])[-1]
        if found != __version__:
            raise RestartError(
                f"gpumagic {found} has been installed over {__version__}, which runs here: restart "
                "the kernel by its front end"
            )
