"""A bound on torch's allocator, as if each device had only so much memory for it.

By ``torch.cuda.set_per_process_memory_fraction``, which bounds what the allocator reserves; the
CUDA context and libraries come on top (300 to 500 MiB). Where the limit is reached, torch raises
its own out-of-memory error.
"""

from __future__ import annotations

import math
import sys
from typing import Any, cast

from gpumagic.cuda import failure, torch_cuda
from gpumagic.errors import DeviceError
from gpumagic.render.units import bytes_
from gpumagic.results.allocator import LimitState
from gpumagic.system import text


class MemoryLimit:
    """The limit of this process, and the user's own fractions."""

    def __init__(self) -> None:
        #: Bytes of each device; None for no limit.
        self.size: int | None = None
        #: By ordinal, the fraction before, and the one that was set.
        self._fractions: dict[int, tuple[float, float]] = {}

    def set(self, size: int) -> None:
        """Bound torch's allocator on every device, or when CUDA is initialised.

        Raises:
            DeviceError: there is no GPU, or torch cannot bound its allocator; nothing was changed.
        """
        torch_cuda.require()
        if failure.has_no_gpu():
            raise DeviceError(f"no limit was set: {failure.why_no_gpu()}")
        self.lift()
        self.size = size
        if torch_cuda.initialized():
            try:
                self._bound()
            except BaseException:
                self.lift()
                raise
        else:
            torch_cuda.when_initialized(self._begin)

    def _begin(self) -> None:
        """Bound the devices while torch initialises CUDA, before anything is allocated."""
        try:
            self._bound()
        except Exception as error:  # torch would raise it in the user's cell
            self.lift()
            print(f"%gpumem limit: no limit was set ({text.named(error)})", file=sys.stderr)

    def apply(self) -> None:
        """Bound the devices that are not bounded yet.

        Before torch 2.10 a device can be bounded only once it is in use.

        Raises:
            DeviceError: torch cannot bound its allocator.
        """
        if self.size is not None and torch_cuda.initialized():
            self._bound()

    def _bound(self) -> None:
        size = cast(int, self.size)
        for ordinal in torch_cuda.boundable():
            if ordinal not in self._fractions:
                own = torch_cuda.memory_fraction(ordinal)
                # The user's own, smaller fraction stays.
                torch_cuda.set_memory_fraction(ordinal, min(_fraction(size, ordinal), own))
                self._fractions[ordinal] = own, torch_cuda.memory_fraction(ordinal)

    def state(self) -> LimitState:
        """Return the limit, and where more is reserved already."""
        notes = []
        for ordinal in torch_cuda.contexts() if self.size is not None else ():
            _, reserved = torch_cuda.memory_held(ordinal)
            if reserved > cast(int, self.size):
                notes.append(
                    f"cuda:{ordinal}: torch has reserved {bytes_(reserved)} already, more than the "
                    "limit; nothing new is reserved there until it is less: '%gpumem free'."
                )
        return LimitState(self.size, tuple(notes))

    def lift(self) -> None:
        """Remove the limit: restore the user's own fractions, except where one was set since."""
        self.size = None
        torch_cuda.cancel(self._begin)
        for ordinal, (own, ours) in self._fractions.items():
            if torch_cuda.memory_fraction(ordinal) == ours:
                torch_cuda.set_memory_fraction(ordinal, own)
        self._fractions.clear()


def _fraction(size: int, ordinal: int) -> float:
    """Return the fraction of a device of which torch, which rounds down, makes this size."""
    torch: Any = torch_cuda.loaded()
    total = int(torch.cuda.get_device_properties(ordinal).total_memory)
    found = size / total
    return min(found if int(found * total) >= size else math.nextafter(found, 1.0), 1.0)


#: The limit of this process.
LIMIT = MemoryLimit()
