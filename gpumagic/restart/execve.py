"""The process that is to be replaced: what would be lost with it, and its replacement."""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import stat
import sys
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn

from gpumagic.cuda.processes import command_name
from gpumagic.restart import signals
from gpumagic.restart.connections import socket_of

# --- what would be lost --------------------------------------------------------------------------

#: Helpers of Python and torch that end by themselves when their master does.
_HELPERS = (
    "multiprocessing.resource_tracker",
    "multiprocessing.forkserver",
    "torch_shm_manager",
    "torch/_inductor/compile_worker",
    "torch._inductor.compile_worker",
)


def children(*, helpers: bool = False) -> dict[int, str]:
    """The child processes of this one, helpers apart, or too: their pids and names.

    Of a command the program and the script are told, no arguments.
    """
    found = {child.pid: child.name for child in multiprocessing.active_children() if child.pid}
    for pid, words, name in _children_of_system():
        command = " ".join(words)
        if helpers or not any(helper in command for helper in _HELPERS):
            found[pid] = command_name(words, name)
        else:
            found.pop(pid, None)
    return found


def _children_of_system() -> Iterator[tuple[int, list[str], str]]:
    """Living children, their command lines and names, by psutil or /proc, if either is there."""
    try:
        import psutil
    except ImportError:
        yield from _children_in_proc()
        return
    for child in psutil.Process().children():
        try:
            if child.status() != psutil.STATUS_ZOMBIE:
                yield child.pid, child.cmdline(), child.name()
        except psutil.Error:
            continue


def _children_in_proc() -> Iterator[tuple[int, list[str], str]]:
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            head, _, tail = os.fsdecode((folder / "stat").read_bytes()).rpartition(")")
            state, parent = tail.split()[:2]
            if int(parent) == os.getpid() and state != "Z":
                words = os.fsdecode((folder / "cmdline").read_bytes().rstrip(b"\0"))
                name = head.partition("(")[2]
                yield int(folder.name), words.split("\0") if words else [], name
        except OSError:
            continue


def end(pids: Mapping[int, str], patience: float = 1.0) -> None:
    """End child processes as an ordinary restart does: asked first, then killed; then reaped."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        for pid in pids:
            _unless_gone(os.kill, pid, number)
        deadline = time.monotonic() + patience
        while any(not _reaped(pid) for pid in pids) and time.monotonic() < deadline:
            time.sleep(0.01)


def _unless_gone(function: Any, *arguments: Any) -> Any:
    try:
        return function(*arguments)
    except (ProcessLookupError, ChildProcessError):
        return None


def _reaped(pid: int) -> bool:
    outcome = _unless_gone(os.waitpid, pid, os.WNOHANG)
    return outcome is None or outcome[0] == pid


# --- the new process image -----------------------------------------------------------------------


def replace(
    command: Sequence[str],
    environment: Mapping[str, str],
    folder: str,
    *,
    hold: bool,
    stay: Collection[int] = (),
) -> NoReturn:
    """Become ``command``, started in ``folder``; the descriptors ``stay`` are handed on.

    With ``hold`` an interrupt from now on waits until the new process unblocks SIGINT; otherwise
    it is ignored until the new process says what it does.

    Raises:
        OSError, TypeError, ValueError: the system refuses; the process is as it was.
    """
    import posix  # not on Windows

    close_at_exec(stay)
    blocked = (signal.SIGINT,) if hold else ()
    with signals.as_at_the_start(blocked), working_in(folder):
        interrupts = signal.getsignal(signal.SIGINT)
        if not hold:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            # Of the module itself: debuggers replace os.execve, and theirs starts another process.
            posix.execve(command[0], list(command), dict(environment))
        finally:
            signal.signal(signal.SIGINT, interrupts)


@contextmanager
def working_in(folder: str) -> Iterator[None]:
    """``folder`` as the working folder, or the present one, or where neither is there Python's own.

    In a folder that is gone Python does not start where its path has a relative entry.
    """
    try:
        here = os.open(".", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:  # gone, or not to be read
        here = None
    try:
        with suppress(OSError):
            os.chdir(folder)
        try:
            Path.cwd()
        except OSError:
            os.chdir(sys.prefix)
        yield
    finally:
        if here is not None:
            with suppress(OSError):
                os.fchdir(here)
            os.close(here)


def close_at_exec(stay: Collection[int] = ()) -> None:
    """See to it that ``execve`` closes what libraries have opened: GPUs, files, network sockets.

    Python's own descriptors are closed anyway. Pipes and Unix sockets stay if whoever started this
    process made them inheritable, as do the files that `handover` leaves (without a name), and
    ``stay``.
    """
    for descriptor in stay:
        os.set_inheritable(descriptor, True)
    for descriptor in [int(entry.name) for entry in Path("/dev/fd").iterdir()]:
        try:
            if descriptor <= 2 or descriptor in stay:
                continue
            if os.get_inheritable(descriptor) and not _stays(descriptor):
                os.set_inheritable(descriptor, False)
        except OSError:
            continue  # closed since


def _stays(descriptor: int) -> bool:
    found = os.fstat(descriptor)
    if stat.S_ISSOCK(found.st_mode):
        copy = socket_of(descriptor)
        if copy is None:
            return False
        with copy:
            return copy.family == socket.AF_UNIX
    unnamed = stat.S_ISREG(found.st_mode) and not found.st_nlink
    return stat.S_ISFIFO(found.st_mode) or unnamed
