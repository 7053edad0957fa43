"""The process as something that can be started again: its command, and what would be lost."""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import stat
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

from gpumagic.errors import RestartError


def command(app: Any, extra: tuple[str, ...]) -> list[str]:
    """The command line of this process, with the options ``extra`` of ``app`` added once.

    Raises:
        RestartError: it cannot be executed again.
    """
    if sys.platform == "win32":
        raise RestartError("Windows cannot replace a running process")
    if not sys.executable or not os.access(sys.executable, os.X_OK):
        raise RestartError(f"the Python interpreter cannot be executed again: {sys.executable!r}")
    given = list(app.argv)
    as_given = sys.orig_argv[len(sys.orig_argv) - len(given) :] == given
    if not as_given or (not given and not _is_app()):
        raise RestartError(
            "this shell is embedded in another program, which would start from its beginning"
        )
    arguments = [argument for argument in sys.orig_argv[1:] if argument not in extra]
    position = len(arguments)
    if "--" in given:  # behind it come a script's own arguments
        position -= given[::-1].index("--") + 1
    return [sys.executable, *arguments[:position], *extra, *arguments[position:]]


def _is_app() -> bool:
    """Whether the command is IPython's or ipykernel's own."""
    names = ("ipython", "ipython3", "IPython", "ipykernel", "ipykernel_launcher", "jupyter-kernel")
    return Path(sys.orig_argv[-1]).stem in names


def is_fork(shell: Any) -> bool:
    """Whether this process is a forked copy of the one that loaded gpumagic."""
    extension = getattr(shell, "_gpumagic", None)
    return extension is not None and bool(extension.pid != os.getpid())


# --- what would be lost --------------------------------------------------------------------------

#: Helpers of Python and torch that end by themselves when their master does.
_HELPERS = (
    "multiprocessing.resource_tracker",
    "multiprocessing.forkserver",
    "torch_shm_manager",
    "torch/_inductor/compile_worker",
    "torch._inductor.compile_worker",
)


def children() -> dict[int, str]:
    """The child processes of this one, helpers apart: their pids and commands."""
    found = {child.pid: child.name for child in multiprocessing.active_children() if child.pid}
    found.update(_children_of_system())
    return {
        pid: command
        for pid, command in found.items()
        if not any(helper in command for helper in _HELPERS)
    }


def _children_of_system() -> Iterator[tuple[int, str]]:
    """Living children with their command lines, by psutil or /proc; nothing where there is none."""
    try:
        import psutil
    except ImportError:
        yield from _children_in_proc()
        return
    for child in psutil.Process().children():
        try:
            if child.status() != psutil.STATUS_ZOMBIE:
                yield child.pid, " ".join(child.cmdline()) or child.name()
        except psutil.Error:
            continue


def _children_in_proc() -> Iterator[tuple[int, str]]:
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            state, parent = (folder / "stat").read_text().rpartition(")")[2].split()[:2]
            if int(parent) == os.getpid() and state != "Z":
                words = (folder / "cmdline").read_bytes().split(b"\0")
                yield int(folder.name), os.fsdecode(b" ".join(words).strip())
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
    command: list[str], environment: Mapping[str, str], folder: str, *, kernel: bool
) -> NoReturn:
    """Become ``command``, started in ``folder``.

    Raises:
        OSError: the system refuses; the process is as it was.
    """
    for timer in (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF):
        signal.setitimer(timer, 0)  # or it would end the new process
    close_at_exec()
    here = Path.cwd() if Path(folder).is_dir() else None
    interrupts = signal.getsignal(signal.SIGINT)
    if kernel:
        # Until ipykernel has set this itself, an interrupt would end the new process.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        if here is not None:
            os.chdir(folder)
        os.execve(command[0], command, dict(environment))
    finally:
        if here is not None:
            os.chdir(here)
        signal.signal(signal.SIGINT, interrupts)


def close_at_exec() -> None:
    """See to it that ``execve`` closes what libraries have opened: GPUs, files, network sockets.

    Python's own descriptors are closed anyway. Pipes and Unix sockets stay if whoever started this
    process made them inheritable, as does the file that `handover` leaves (a file without a name).
    """
    for descriptor in [int(entry.name) for entry in Path("/dev/fd").iterdir()]:
        try:
            if descriptor > 2 and os.get_inheritable(descriptor) and not _stays(descriptor):
                os.set_inheritable(descriptor, False)
        except OSError:
            continue  # closed since


def _stays(descriptor: int) -> bool:
    found = os.fstat(descriptor)
    if stat.S_ISSOCK(found.st_mode):
        with socket.socket(fileno=os.dup(descriptor)) as copy:
            return copy.family == socket.AF_UNIX
    unnamed = stat.S_ISREG(found.st_mode) and not found.st_nlink
    return stat.S_ISFIFO(found.st_mode) or unnamed
