"""What an interpreter does when it ends, and a process that is replaced would leave out."""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import redirect_stderr, redirect_stdout, suppress
from types import MethodType
from typing import Any, ClassVar


def run_exit_functions(shell: Any) -> None:
    """Call what the user and libraries have registered with `atexit`: temporary folders go.

    What they print goes where it goes at the end of a kernel. What IPython and ipykernel have
    registered is not called, since the new process goes on with their files and the history.
    """
    own = [function for function in _own(shell) if _unregister(function)]
    try:
        with (
            suppress(Exception, KeyboardInterrupt, SystemExit),  # they are told on stderr
            redirect_stdout(sys.__stdout__),
            redirect_stderr(sys.__stderr__),
        ):
            atexit._run_exitfuncs()
    finally:
        for function in reversed(own):
            atexit.register(function)


def _own(shell: Any) -> Iterator[MethodType]:
    """What IPython and ipykernel register."""
    app = getattr(getattr(shell, "kernel", shell), "parent", None)
    places = (
        (app, "cleanup_connection_file"),
        (app, "close"),
        (getattr(app, "iopub_thread", None), "stop"),
        (shell, "atexit_operations"),
        (getattr(shell.history_manager, "save_thread", None), "stop"),
    )
    for owner, name in places:
        function = getattr(owner, name, None)
        if isinstance(function, MethodType):
            yield function


def _unregister(function: MethodType) -> bool:
    """Whether it was registered; it is no more."""
    found = any(
        type(each) is MethodType
        and each.__self__ is function.__self__
        and each.__func__ is function.__func__
        for each in _registered()
    )
    if found:
        atexit.unregister(function)
    return found


def _registered() -> list[Any]:
    """All exit functions. `atexit` names none, but compares each with what is to be taken out."""

    class Listener:
        heard: ClassVar[list[Any]] = []

        def __eq__(self, other: object) -> bool:
            self.heard.append(other)
            return False

        __hash__ = None  # type: ignore[assignment]

    atexit.unregister(Listener())  # type: ignore[arg-type]
    return Listener.heard


def removes_connection_file(app: Any) -> bool:
    """Whether the kernel removes its connection file when it ends, since it has made it."""
    function = app.cleanup_connection_file
    registered = _unregister(function)
    if registered:
        atexit.register(function)
    return registered


def reaped(pids: Iterable[int]) -> list[int]:
    """Reap those children that have ended; those that have not."""
    left = []
    for pid in pids:
        with suppress(ChildProcessError):
            if os.waitpid(pid, os.WNOHANG)[0] == 0:
                left.append(pid)
    return left
