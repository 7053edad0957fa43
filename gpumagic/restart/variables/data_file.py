"""The bytes of arrays and tensors: where they are in this process, and in the file that keeps them.

What shares memory shares a part of the file, and of the memory that is mapped from it.
"""

from __future__ import annotations

import ctypes
import mmap
import shutil
import tempfile
from collections import Counter
from collections.abc import Sequence
from typing import IO, Any, NamedTuple

from gpumagic.cuda.pytorch.tensors import as_bytes, plain_functions
from gpumagic.errors import RestartError
from gpumagic.system import text

#: Each part begins at a multiple of so many bytes: CPUs read aligned numbers.
_ALIGNMENT = 64


class Memory(NamedTuple):
    """The memory of ``owner``, a storage of torch or an object of the host: an address in bytes."""

    device: str
    address: int
    size: int
    owner: Any

    def read(self) -> memoryview:
        """Return the bytes; those on a GPU are copied."""
        if self.device == "cpu":
            return memoryview((ctypes.c_char * self.size).from_address(self.address)).cast("B")
        with plain_functions():
            return memoryview(as_bytes(self.owner).cpu().numpy())


class Part(NamedTuple):
    """Where the bytes of a `Memory` are in the file; whether others are there, too."""

    place: int
    size: int
    device: str
    is_shared: bool


def layout(memory: Sequence[Memory], end: int) -> list[Part]:
    """Return where in the file each is, behind the ``end`` bytes that it has already."""
    places, regions = dict[int, int](), dict[int, int]()
    device, start, stop = "", 0, 0
    for number, each in sorted(enumerate(memory), key=lambda one: one[1][:2]):
        if each.device != device or each.address >= stop:  # it overlaps with none before it
            end += stop - start
            end += -end % _ALIGNMENT
            device, start, stop = each.device, each.address, each.address
        stop = max(stop, each.address + each.size)
        places[number], regions[number] = end + each.address - start, start
    # On a GPU each is copied to a storage of its own.
    counts = Counter(start for n, start in regions.items() if memory[n].device == "cpu")
    return [
        Part(places[n], each.size, each.device, each.device == "cpu" and counts[regions[n]] > 1)
        for n, each in enumerate(memory)
    ]


def write(file: IO[bytes], memory: Sequence[Memory], parts: Sequence[Part]) -> None:
    """Write the bytes to their places.

    Raises:
        OSError: there is no room.
        RestartError: a GPU does not give them.
    """
    free = shutil.disk_usage(tempfile.gettempdir()).free
    if (need := sum(part.size for part in parts)) > free:
        raise OSError(f"they need {need / 2**30:.1f} GiB, and it has {free / 2**30:.1f} GiB")
    try:
        for each, part in zip(memory, parts, strict=True):
            if part.size:
                file.seek(part.place)
                file.write(each.read())
    except RuntimeError as error:  # after which the next restart knows that CUDA has failed
        raise RestartError(f"the GPUs' memory cannot be read: {text.reason(error)}") from None
    file.flush()


def mapped(descriptor: int, parts: Sequence[Part]) -> list[memoryview]:
    """Return the bytes of the parts: memory that is the file's until it is written to."""
    sized = any(part.size for part in parts)  # an empty file cannot be mapped
    whole = memoryview(mmap.mmap(descriptor, 0, access=mmap.ACCESS_COPY) if sized else b"")
    return [whole[part.place : part.place + part.size] for part in parts]
