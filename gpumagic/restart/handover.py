"""What the old program tells the new one: a `State` in a file that ``execve`` inherits.

In memory, so that a full disk cannot stop a restart for which the requests are already taken.
"""

from __future__ import annotations

import os
import pickle
from dataclasses import dataclass, field
from typing import IO, Any, cast

from gpumagic.system.import_path import Imports

#: ``descriptor:pid`` of the file, in the environment of the new program.
VARIABLE = "GPUMAGIC_RESTARTED"


@dataclass
class State:
    """Where the old program stopped."""

    #: What the report is made of, pickled; the variable to which the cell assigns its value.
    payload: bytes
    target: str | None
    #: Descriptors: of the file of the variables; of others that stay open; of the working folder.
    file: int | None
    inherited: list[int]
    #: `SEARCHED`, and the import path; from where the restart itself imports.
    searched: dict[str, str | None]
    path: list[str]
    imports: Imports
    #: The number of the cell; the cells as they were run and as they were typed.
    count: int
    inputs: tuple[list[str], list[str]]
    #: Where IPython was started; the folders of ``_dh``; the IPython extensions that are loaded.
    started_in: str
    visited: list[str]
    extensions: list[str]
    folder: int | None = None
    #: Of a kernel: the messages that wait, the connections of its clients, the descriptors of its
    #: listening sockets by port, and what is in its connection file.
    requests: list[list[bytes]] = field(default_factory=list)
    clients: int = 0
    listening: dict[int, int] = field(default_factory=dict)
    connection: dict[str, Any] = field(default_factory=dict)


def give(file: IO[bytes], state: State) -> str:
    """Write ``state`` to a file that ``execve`` inherits; return the value of `VARIABLE`."""
    pickle.dump(state, file)
    file.flush()
    return f"{file.fileno()}:{os.getpid()}"


def look() -> State | None:
    """Return the state, and leave it for `take`; None in a process that replaces none."""
    descriptor, _, pid = os.environ.get(VARIABLE, "").partition(":")
    if pid != str(os.getpid()):  # a child has inherited the variable
        return None
    with opened(os.dup(int(descriptor))) as file:
        return cast(State, pickle.load(file))


def take() -> State | None:
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
