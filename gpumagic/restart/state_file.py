"""What the old process image leaves to the new one: a file without a name.

The file is removed from the folder the moment it is made; what remains is an open descriptor that
``execve`` hands on. Nobody else can open it, and nothing is left behind, whatever happens.

Needs nothing else of gpumagic: `loader` reads what was left before it imports the package.
"""

from __future__ import annotations

import errno
import os
import pickle
import stat
import tempfile
from typing import IO, Any

#: ``descriptor:pid:device:inode`` of the file, in the environment of the new process image.
VARIABLE = "GPUMAGIC_RESTARTED"


def create(folder: str | None = None) -> IO[bytes]:
    """An open file of mode 0600 that has no name (any more), in ``folder`` or in memory.

    Raises:
        OSError: it cannot be made, or keeps a name there, as on NFS.
    """
    file = _in_memory() if folder is None and hasattr(os, "memfd_create") else _on_disk(folder)
    if not _is_private(os.fstat(file.fileno())):
        file.close()
        where = folder or tempfile.gettempdir()
        raise OSError(errno.ENOTSUP, f"a file in {where} cannot be without a name; set TMPDIR")
    return file


def _in_memory() -> IO[bytes]:
    descriptor = os.memfd_create("gpumagic")
    os.fchmod(descriptor, 0o600)
    return os.fdopen(descriptor, "w+b")


def _on_disk(folder: str | None) -> IO[bytes]:
    return tempfile.TemporaryFile(dir=folder, prefix="gpumagic-")


def address(file: IO[bytes]) -> str:
    """How the process that this one becomes finds ``file`` again; it stays open for it."""
    file.flush()
    os.set_inheritable(file.fileno(), True)
    found = os.fstat(file.fileno())
    return f"{file.fileno()}:{os.getpid()}:{found.st_dev}:{found.st_ino}"


def take() -> dict[str, Any] | None:
    """What was left to this process, once; None if nothing was, or if it is not meant for it.

    Files whose addresses were left under ``files`` are there, open; ``waiting`` is what follows.
    """
    given = os.environ.pop(VARIABLE, None)
    letter = None if given is None else _open(given)
    if letter is None:
        return None
    with letter:
        state: dict[str, Any] = pickle.load(letter)
        try:
            state["waiting"] = pickle.load(letter)
        except EOFError:
            state["waiting"] = []
    files = [_open(given) for given in state["files"]]
    state["files"] = [file for file in files if file is not None]
    return state


def _open(given: str) -> IO[bytes] | None:
    """The file at an `address`, if it is what it should be: ours, private, without a name."""
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
