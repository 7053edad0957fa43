"""The state that the old program passes to the new one by ``execve``, in an unnamed file.

The file is unlinked when it is created; only the inherited descriptor remains. No other process
can open it, and it disappears with the last descriptor.

Imports nothing of gpumagic: `loader` reads the state before it imports the package.
"""

from __future__ import annotations

import errno
import os
import pickle
import stat
import tempfile
from typing import IO, Any

#: ``descriptor:pid:device:inode`` of the file, in the environment of the new program.
VARIABLE = "GPUMAGIC_RESTARTED"


def create(folder: str | None = None) -> IO[bytes]:
    """Create an unnamed file of mode 0600, in ``folder`` or in memory.

    Raises:
        OSError: it cannot be created, or has a name there, as on NFS.
    """
    file = _in_memory() if folder is None and hasattr(os, "memfd_create") else _on_disk(folder)
    if not _is_private(os.fstat(file.fileno())):
        file.close()
        where = folder or tempfile.gettempdir()
        raise OSError(errno.ENOTSUP, f"{where} does not support files without a name; set TMPDIR")
    return file


def _in_memory() -> IO[bytes]:
    descriptor = os.memfd_create("gpumagic")
    os.fchmod(descriptor, 0o600)
    return os.fdopen(descriptor, "w+b")


def _on_disk(folder: str | None) -> IO[bytes]:
    return tempfile.TemporaryFile(dir=folder, prefix="gpumagic-")


def address(file: IO[bytes]) -> str:
    """Return where the new program finds ``file``, which it inherits."""
    file.flush()
    os.set_inheritable(file.fileno(), True)
    found = os.fstat(file.fileno())
    return f"{file.fileno()}:{os.getpid()}:{found.st_dev}:{found.st_ino}"


def take() -> dict[str, Any] | None:
    """Read the state, once; None if there is none, or it is not for this process.

    ``files`` are the open files whose addresses were in the state; ``pending_requests`` were
    written after it.
    """
    given = os.environ.pop(VARIABLE, None)
    file = None if given is None else _open(given)
    if file is None:
        return None
    with file:
        state: dict[str, Any] = pickle.load(file)
        try:
            state["pending_requests"] = pickle.load(file)
        except EOFError:
            state["pending_requests"] = []
    files = [_open(given) for given in state["files"]]
    state["files"] = [file for file in files if file is not None]
    return state


def _open(given: str) -> IO[bytes] | None:
    """Open the file at an `address` if it is this process's, private and unnamed; else None."""
    try:
        descriptor, pid, device, inode = map(int, given.split(":"))
        found = os.fstat(descriptor)
    except (ValueError, OSError):
        return None
    same = pid == os.getpid() and (found.st_dev, found.st_ino) == (device, inode)
    if not same or not _is_private(found):
        return None
    os.set_inheritable(descriptor, False)
    file = os.fdopen(descriptor, "r+b")
    file.seek(0)
    return file


def _is_private(found: os.stat_result) -> bool:
    return (
        stat.S_ISREG(found.st_mode)
        and found.st_uid == os.geteuid()
        and not found.st_nlink
        and not found.st_mode & 0o077
    )
