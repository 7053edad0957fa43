"""Run the exit functions of an interpreter, which ``execve`` would skip; reap children."""

from __future__ import annotations

import atexit
import logging
import os
import sys
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from types import MethodType
from typing import Any, ClassVar


def run_exit_functions(shell: Any) -> None:
    """Call the `atexit` functions of the user and of libraries, which remove temporary folders.

    They print where they would at the end of a kernel. Those of IPython and ipykernel are not
    called: the new program continues with their files and history. Nor are those without which
    this process would have no history, finalizers and logs: ``execve`` may still fail.
    """
    excluded = [function for function in _of_ipython(shell) if _unregister(function)]
    try:
        with (
            _history_open(shell.history_manager),
            _finalizers_on(),
            _logs_open(),
            suppress(Exception, KeyboardInterrupt, SystemExit),  # atexit prints them on stderr
            redirect_stdout(sys.__stdout__),
            redirect_stderr(sys.__stderr__),
        ):
            atexit._run_exitfuncs()
    finally:
        for function in reversed(excluded):
            atexit.register(function)


@contextmanager
def _history_open(history: Any) -> Iterator[None]:
    """Disable the finalizer with which newer versions of IPython close the history's database."""
    finalizer = getattr(history, "_finalizer", None)
    if type(finalizer) is not weakref.finalize or not finalizer.atexit:
        yield
        return
    finalizer.atexit = False
    try:
        yield
    finally:
        finalizer.atexit = True


@contextmanager
def _finalizers_on() -> Iterator[None]:
    """Enable `weakref.finalize` again: its exit function disables all finalizers."""
    everything: Any = weakref.finalize
    registered = _is_registered(everything._exitfunc)
    try:
        yield
    finally:
        everything._shutdown = False
        if registered and not _is_registered(everything._exitfunc):
            atexit.register(everything._exitfunc)


@contextmanager
def _logs_open() -> Iterator[None]:
    """Flush the handlers of loggers, which stay open."""
    if not any(each is logging.shutdown for each in _registered()):
        yield
        return
    atexit.unregister(logging.shutdown)
    try:
        for reference in reversed(logging._handlerList):  # type: ignore[attr-defined]
            with suppress(Exception):  # as `logging.shutdown` does; it may be the user's own
                reference().flush()
        yield
    finally:
        atexit.register(logging.shutdown)


def _of_ipython(shell: Any) -> Iterator[MethodType]:
    """Find the functions that IPython and ipykernel register."""
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
    """Unregister a function; return whether it was registered."""
    found = _is_registered(function)
    if found:
        atexit.unregister(function)
    return found


def _is_registered(function: MethodType) -> bool:
    return any(
        type(each) is MethodType
        and each.__self__ is function.__self__
        and each.__func__ is function.__func__
        for each in _registered()
    )


def _registered() -> list[Any]:
    """Return all exit functions: `atexit` compares each with one that is to be unregistered."""

    class Recorder:
        seen: ClassVar[list[Any]] = []

        def __eq__(self, other: object) -> bool:
            self.seen.append(other)
            return False

        __hash__ = None  # type: ignore[assignment]

    atexit.unregister(Recorder())  # type: ignore[arg-type]
    return Recorder.seen


def removes_connection_file(app: Any) -> bool:
    """Return whether the kernel, since it made its connection file, removes it when it ends."""
    function = app.cleanup_connection_file
    registered = _unregister(function)
    if registered:
        atexit.register(function)
    return registered


def reap(pids: Iterable[int]) -> list[int]:
    """Reap the children that have ended; return the pids of the others."""
    left = []
    for pid in pids:
        with suppress(ChildProcessError):
            if os.waitpid(pid, os.WNOHANG)[0] == 0:
                left.append(pid)
    return left
