"""What an interpreter does when it ends, and a process that is replaced would leave out."""

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
    """Call what the user and libraries have registered with `atexit`: temporary folders go.

    What they print goes where it goes at the end of a kernel. What IPython and ipykernel have
    registered is not called, since the new process goes on with their files and the history. Nor
    is what would leave this process without its history, finalizers and logs: the system may still
    refuse to replace it.
    """
    own = [function for function in _own(shell) if _unregister(function)]
    try:
        with (
            _history_open(shell.history_manager),
            _finalizers_on(),
            _logs_open(),
            suppress(Exception, KeyboardInterrupt, SystemExit),  # they are told on stderr
            redirect_stdout(sys.__stdout__),
            redirect_stderr(sys.__stderr__),
        ):
            atexit._run_exitfuncs()
    finally:
        for function in reversed(own):
            atexit.register(function)


@contextmanager
def _history_open(history: Any) -> Iterator[None]:
    """Without the finalizer by which newer IPythons close the history's database."""
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
    """`weakref.finalize` as before: its exit function has it ignore all finalizers from then on."""
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
    """What loggers hold back is written; their handlers stay open."""
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
