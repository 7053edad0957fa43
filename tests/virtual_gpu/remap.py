"""A process that has begun in one scenario goes on in another."""

from __future__ import annotations

import ctypes
import mmap
import os
from pathlib import Path

_MAP_SHARED, _MAP_FIXED = 1, 16


def remap(old: Path, new: Path) -> None:
    """Map the shared file `new` wherever this process has mapped `old`.

    The libraries keep addresses in it, so each mapping is replaced where it is. For processes that
    have only loaded them: a device that was initialized keeps what it learned from the old file.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [
        ctypes.c_void_p,
        ctypes.c_size_t,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_long,
    ]
    places = [
        tuple(int(address, 16) for address in line.split(" ", 1)[0].split("-"))
        for line in Path("/proc/self/maps").read_text().splitlines()
        if line.endswith(f" {old}")
    ]
    fd = os.open(new, os.O_RDWR | os.O_CLOEXEC)
    try:
        for start, end in places:
            protection = mmap.PROT_READ | mmap.PROT_WRITE
            got = libc.mmap(start, end - start, protection, _MAP_SHARED | _MAP_FIXED, fd, 0)
            if got != start:
                raise OSError(ctypes.get_errno(), f"{new} cannot be mapped in place of {old}")
    finally:
        os.close(fd)
