"""Ports on loopback that no other run of the tests on this machine takes.

Whoever asks the system for a free port, closes it, and lets a process bind it later may find it
taken by then. Here a run holds a block of ports, below those that the system gives away, by
a name that only one process can bind; within it, one is used again when all others have been.
"""

from __future__ import annotations

import atexit
import itertools
import os
import socket
from collections.abc import Iterator

_FIRST, _SIZE, _BLOCKS = 20_000, 250, 50

_held: tuple[int, socket.socket, Iterator[int]] | None = None


def take(number: int) -> list[int]:
    """Return ports that are free now and that no other run is given."""
    return [next(_turns()) for _ in range(number)]


def _turns() -> Iterator[int]:
    """The free ports of this process's block, forever."""
    global _held
    if _held is None or _held[0] != os.getpid():
        first, lock = _block()
        _held = os.getpid(), lock, _free(first)
    return _held[2]


def _block() -> tuple[int, socket.socket]:
    for turn in range(_BLOCKS):
        first = _FIRST + (os.getpid() + turn) % _BLOCKS * _SIZE
        lock = socket.socket(socket.AF_UNIX)
        try:
            # A name that is no file: the system forgets it when this process has ended.
            lock.bind(f"\0gpumagic-tests-ports-{first}")
        except OSError:
            lock.close()
        else:
            atexit.register(lock.close)
            return first, lock
    raise RuntimeError(f"{_BLOCKS} other runs of the tests hold all blocks of ports")


def _free(first: int) -> Iterator[int]:
    for port in itertools.cycle(range(first, first + _SIZE)):
        with socket.socket() as tried:
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                tried.bind(("127.0.0.1", port))
            except OSError:
                continue
        yield port
