"""What the old program tells the new one: a dictionary in a file that ``execve`` inherits.

In memory, so that a full disk cannot stop a restart for which the requests are already taken.
"""

from __future__ import annotations

import mmap
import os
import pickle
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, NamedTuple, cast

from gpumagic.restart.devices import Devices
from gpumagic.restart.held import Reference

#: ``descriptor:pid`` of the file, in the environment of the new program.
VARIABLE = "GPUMAGIC_RESTARTED"

#: Each array and storage begins at a multiple of so many bytes: CPUs read aligned numbers.
_ALIGNMENT = 64


class Variable(NamedTuple):
    """What is known of a variable beside its pickle."""

    #: Its type; "" for what the new process has anyway, and the content of an object of a module.
    kind: str
    #: Where its pickle ends, and how many arrays it and those before it have.
    end: int
    buffers: int


def _aligned(size: int) -> int:
    return size + -size % _ALIGNMENT


@dataclass(frozen=True)
class Kept:
    """What the new process needs, beside the file, to load the variables."""

    variables: Mapping[str, Variable]
    #: The bytes of all pickles, one after the other, with which the file begins.
    body: int
    #: The bytes of each part behind them: buffers, then the memory of tensors and arrays, by
    #: number, with their devices.
    buffers: Sequence[int]
    storages: Sequence[tuple[int, str]]
    #: The objects of modules that they refer to, with their types.
    referred: Mapping[Reference, str]
    #: The variables that are such objects, and are as a fresh import makes them.
    anew: Collection[str]
    #: Which of `variables` are contents of such objects.
    contents: Collection[str]
    #: Whether each pickle has all that it needs, so that one that does not load is alone in that.
    apart: bool
    #: The lines of the cells in which functions were defined, and the cells' numbers, by file name.
    sources: Mapping[str, list[str]]
    cells: Mapping[str, int]
    devices: Devices
    #: What is said of some: words, and the names behind them.
    notes: Mapping[str, Sequence[str]]
    settings: Mapping[str, bytes] = field(default_factory=dict)
    #: Why variables that were to be kept are lost.
    failed: Mapping[str, str] = field(default_factory=dict)
    #: The variables that came back; the settings that are not carried, by words that say so.
    done: Sequence[str] = ()
    unset: Mapping[str, Sequence[str]] = field(default_factory=dict)
    #: Variables with tensors that came back to a GPU.
    on_gpu: Sequence[str] = ()

    def places(self) -> list[tuple[int, int]]:
        """Return where each part of the file begins, and its bytes; at last, where the file ends.

        First the buffers, then the storages.
        """
        found, begin = list[tuple[int, int]](), _aligned(self.body)
        for size in (*self.buffers, *(size for size, _ in self.storages), 0):
            found.append((begin, size))
            begin += _aligned(size)
        return found

    def pickles(self, descriptor: int) -> IO[bytes]:
        """Return the pickles, to be read from the first."""
        return Path(f"/proc/self/fd/{descriptor}").open("rb")

    def mapped(self, descriptor: int) -> tuple[list[memoryview], list[memoryview]]:
        """Return the buffers and the storages: memory that is the file's until it is written to."""
        whole = memoryview(mmap.mmap(descriptor, 0, access=mmap.ACCESS_COPY))
        parts = [whole[place : place + size] for place, size in self.places()]
        count = len(self.buffers)
        return parts[:count], parts[count:-1]


def give(file: IO[bytes], state: dict[str, Any]) -> str:
    """Write ``state`` to a file that ``execve`` inherits; return the value of `VARIABLE`."""
    pickle.dump(state, file)
    file.flush()
    return f"{file.fileno()}:{os.getpid()}"


def take() -> dict[str, Any] | None:
    """Return the state, once; None in a process that replaces none."""
    descriptor, _, pid = os.environ.pop(VARIABLE, "").partition(":")
    if pid != str(os.getpid()):  # a child has inherited the variable
        return None
    with opened(int(descriptor)) as file:
        return cast("dict[str, Any]", pickle.load(file))


def in_memory() -> IO[bytes]:
    """Return a file without a name, in memory."""
    return os.fdopen(os.memfd_create("gpumagic"), "w+b")


def opened(descriptor: int) -> IO[bytes]:
    """Open an inherited descriptor at the file's beginning; its own children do not inherit it."""
    os.set_inheritable(descriptor, False)
    file = os.fdopen(descriptor, "r+b")
    file.seek(0)
    return file
