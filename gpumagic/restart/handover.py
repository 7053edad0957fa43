"""What the old program tells the new one: a dictionary in a file that ``execve`` inherits.

In memory, so that a full disk cannot stop a restart for which the requests are already taken.
"""

from __future__ import annotations

import os
import pickle
from typing import IO, Any, cast

#: ``descriptor:pid`` of the file, in the environment of the new program.
VARIABLE = "GPUMAGIC_RESTARTED"


def give(file: IO[bytes], state: dict[str, Any]) -> str:
    """Write ``state`` to a file that ``execve`` inherits; return the value of `VARIABLE`."""
    pickle.dump(state, file)
    file.flush()
    return f"{file.fileno()}:{os.getpid()}"


def look() -> dict[str, Any] | None:
    """Return the state, and leave it for `take`; None in a process that replaces none."""
    descriptor, _, pid = os.environ.get(VARIABLE, "").partition(":")
    if pid != str(os.getpid()):  # a child has inherited the variable
        return None
    with opened(os.dup(int(descriptor))) as file:
        return cast("dict[str, Any]", pickle.load(file))


def take() -> dict[str, Any] | None:
    """Return the state, once; None in a process that replaces none."""
    state, given = look(), os.environ.pop(VARIABLE, "")
    if state is not None:
        os.close(int(given.partition(":")[0]))
    return state


def in_memory() -> IO[bytes]:
    """Return a file without a name, in memory."""
    return os.fdopen(os.memfd_create("gpumagic"), "w+b")


def opened(descriptor: int) -> IO[bytes]:
    """Open an inherited descriptor at the file's beginning; its own children do not inherit it."""
    os.set_inheritable(descriptor, False)
    file = os.fdopen(descriptor, "r+b")
    file.seek(0)
    return file
