"""Replace the program of this process by ``execve``; list and terminate its child processes."""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import stat
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NoReturn

import psutil

from gpumagic.cuda.process_state import STATE
from gpumagic.cuda.processes import command_name
from gpumagic.restart import signals
from gpumagic.restart.connections import socket_of

# --- child processes -----------------------------------------------------------------------------

#: Helper processes of Python and torch that end by themselves when their parent does.
_HELPERS = (
    "multiprocessing.resource_tracker",
    "multiprocessing.forkserver",
    "torch_shm_manager",
    "torch/_inductor/compile_worker",
    "torch._inductor.compile_worker",
)


def children(*, helpers: bool = False) -> dict[int, str]:
    """Return the pids and names of this process's children; ``helpers`` includes helper processes.

    A name is that of the program and the script, without arguments.
    """
    found = {child.pid: child.name for child in multiprocessing.active_children() if child.pid}
    for child in psutil.Process().children():
        try:
            if child.status() == psutil.STATUS_ZOMBIE:
                continue
            words, name = child.cmdline(), child.name()
        except psutil.Error:  # it has ended
            continue
        if helpers or not any(helper in " ".join(words) for helper in _HELPERS):
            found[child.pid] = command_name(words, name)
        else:
            found.pop(child.pid, None)
    return found


def terminate(pids: Iterable[int], timeout: float = 1.0) -> None:
    """Terminate child processes, and kill those that have not ended after ``timeout`` seconds."""
    left = []
    for pid in pids:
        with suppress(psutil.NoSuchProcess):
            left.append(psutil.Process(pid))
    for signal_ in (psutil.Process.terminate, psutil.Process.kill):
        for process in left:
            with suppress(psutil.NoSuchProcess):
                signal_(process)
        _, left = psutil.wait_procs(left, timeout)


# --- execve --------------------------------------------------------------------------------------


def replace(
    command: Sequence[str],
    environment: Mapping[str, str],
    folder: str,
    *,
    defer_interrupts: bool,
    inherited: Collection[int] = (),
) -> NoReturn:
    """Execute ``command`` in ``folder``; it inherits the descriptors ``inherited``.

    With ``defer_interrupts`` SIGINT is blocked until the new program unblocks it; otherwise it is
    ignored until the new program sets a handler.

    Raises:
        OSError, TypeError, ValueError: the system refuses; nothing has changed.
    """
    import posix  # not on Windows

    environment = dict(environment)
    claims = () if STATE.claims is None else STATE.claims.pass_on(environment)
    close_at_exec({*inherited, *claims})
    blocked = (signal.SIGINT,) if defer_interrupts else ()
    with signals.default_dispositions(blocked), working_in(folder):
        interrupts = signal.getsignal(signal.SIGINT)
        if not defer_interrupts:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            # Not os.execve: debuggers replace it by a function that starts another process.
            posix.execve(command[0], list(command), environment)
        finally:
            signal.signal(signal.SIGINT, interrupts)


@contextmanager
def working_in(folder: str) -> Iterator[None]:
    """Work in ``folder``, else in the current folder, or in `sys.prefix` where neither exists.

    In a folder that was removed Python does not start if its path has a relative entry.
    """
    try:
        here = os.open(".", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:  # removed, or not readable
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


def close_at_exec(inherited: Collection[int] = ()) -> None:
    """Have ``execve`` close the GPUs, files and network sockets that libraries have opened.

    Descriptors that Python opened are closed anyway. Inheritable pipes and Unix sockets stay open,
    as the parent process wanted, and so do the unnamed files of `state_file`, and ``inherited``.
    """
    for descriptor in inherited:
        os.set_inheritable(descriptor, True)
    for descriptor in [int(entry.name) for entry in Path("/dev/fd").iterdir()]:
        try:
            if descriptor <= 2 or descriptor in inherited:
                continue
            if os.get_inheritable(descriptor) and not _is_inherited(descriptor):
                os.set_inheritable(descriptor, False)
        except OSError:
            continue  # closed meanwhile


def _is_inherited(descriptor: int) -> bool:
    found = os.fstat(descriptor)
    if stat.S_ISSOCK(found.st_mode):
        copy = socket_of(descriptor)
        if copy is None:
            return False
        with copy:
            return copy.family == socket.AF_UNIX
    unnamed = stat.S_ISREG(found.st_mode) and not found.st_nlink
    return stat.S_ISFIFO(found.st_mode) or unnamed
