"""A bound on torch's allocator, as if each device had so much memory in all.

``torch.cuda.set_per_process_memory_fraction`` bounds the caching allocator alone, not the context
or libraries, which count here too: so the allocator's share of a limit is what this process does
not hold outside of it. A context's size is known only once there is one: a device that is not in
use yet is bounded as if its context were as large as one of this process, or a usual one. Where the
limit is reached, torch raises its own out-of-memory error.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

from gpumagic.cuda import allocator, failure, torch_cuda
from gpumagic.errors import DeviceError
from gpumagic.memory.report import memory_report, outside_allocator
from gpumagic.render.units import bytes_
from gpumagic.results.limit import LimitState
from gpumagic.system import text

#: The bytes outside the allocator that are assumed where they are not known: contexts of torch take
#: 300 to 500 MiB, by the device and what is loaded.
USUAL_CONTEXT = 512 << 20
#: A fraction from here on is none.
_WHOLE = 0.999


@dataclass(frozen=True)
class _Bound:
    """The fractions of one device."""

    #: The user's own, by ``torch.cuda.set_per_process_memory_fraction``.
    own: float
    #: The one that was set for the limit, as torch returns it: torch 2.6 rounds it down.
    set: float
    #: Whether the limit is smaller than the user's own.
    is_smaller: bool


class MemoryLimit:
    """The limit of this process, and the user's own fractions."""

    def __init__(self) -> None:
        #: Bytes of each device; None for no limit.
        self.size: int | None = None
        self._bounds: dict[int, _Bound] = {}
        self._waits = False

    def set(self, size: int) -> None:
        """Bound torch's allocator on every device, or when CUDA is initialised.

        Before torch 2.10 a device that is not in use is bounded by an `update` once it is.

        Raises:
            DeviceError: there is no GPU, torch cannot bound its allocator, or a limit is smaller
                than what this process holds outside of it.
        """
        torch_cuda.require()
        if failure.has_no_gpu():
            raise DeviceError(f"no limit was set: {failure.why_no_gpu()}")
        self._check(size)
        before, self.size = self.size, size
        if torch_cuda.initialized():
            try:
                self.update()
            except DeviceError:
                self.size = before
                raise
        elif not self._waits:
            self._waits = True
            torch_cuda.when_initialized(self._begin)

    def _check(self, size: int) -> None:
        devices = memory_report().devices
        totals = [memory.total for memory in devices.values()]
        largest = max((total for total in totals if total is not None), default=None)
        if largest is not None and size >= largest and None not in totals:
            raise DeviceError(
                f"{bytes_(size)} are no limit: no GPU here has more than {bytes_(largest)}"
            )
        in_use = [ordinal for ordinal, memory in devices.items() if memory.context]
        if not in_use and size <= USUAL_CONTEXT:
            raise DeviceError(
                f"{bytes_(size)} are not enough for a CUDA context, which counts; write a limit "
                f"above {bytes_(USUAL_CONTEXT)}, or use the GPU first, and its size is known"
            )
        for ordinal in in_use:
            outside = devices[ordinal].outside or 0
            if outside >= size:
                raise DeviceError(
                    f"{bytes_(size)} are less than this process holds outside torch's allocator on "
                    f"cuda:{ordinal} (CUDA context, libraries: {bytes_(outside)}); "
                    f"write a limit above that"
                )

    def _begin(self) -> None:
        """Bound the devices while torch initialises CUDA, before anything is allocated."""
        self._waits = False
        if self.size is None:
            return
        try:
            # The current device is used next.
            current = cast(Any, torch_cuda.loaded())._C._cuda_getDevice()
            for ordinal in {*allocator.boundable(), current}:
                self._bound(ordinal, USUAL_CONTEXT)
        except Exception as error:  # torch would raise it in the user's cell
            self.size = None
            print(f"%gpumem limit: no limit was set ({text.named(error)})", file=sys.stderr)

    def update(self) -> None:
        """Bound the devices anew, by what is held outside the allocator now.

        Raises:
            DeviceError: torch cannot bound its allocator.
        """
        if self.size is None or not torch_cuda.initialized():
            return
        outside = {i: size for i, size in outside_allocator().items() if size is not None}
        assumed = min(outside.values(), default=USUAL_CONTEXT)
        for ordinal in allocator.boundable():
            self._bound(ordinal, outside.get(ordinal, assumed))

    def _bound(self, ordinal: int, outside: int) -> None:
        wanted = _fraction(max(cast(int, self.size) - outside, 0), _total(ordinal))
        own = self._own_fraction(ordinal)
        allocator.set_memory_fraction(ordinal, min(wanted, own))
        self._bounds[ordinal] = _Bound(own, allocator.memory_fraction(ordinal), wanted < own)

    def _own_fraction(self, ordinal: int) -> float:
        """Return the user's own fraction: the current one unless that was set for the limit."""
        current, bound = allocator.memory_fraction(ordinal), self._bounds.get(ordinal)
        return current if bound is None or current != bound.set else bound.own

    def binds(self, ordinal: int) -> bool:
        """Return whether the limit bounds a device's allocator, and no smaller fraction does."""
        bound = self._bounds.get(ordinal)
        return (
            self.size is not None
            and bound is not None
            and bound.is_smaller
            and allocator.memory_fraction(ordinal) == bound.set
        )

    def without(self, ordinal: int) -> int:
        """Return the bytes that torch may reserve on a device once the limit is lifted."""
        return int(self._own_fraction(ordinal) * _total(ordinal))

    def state(self) -> LimitState:
        """Return the limit, with a note on each device where something else is to be known."""
        return LimitState(self.size, (*self._notes(),))

    def _notes(self) -> Iterator[str]:
        for ordinal in torch_cuda.contexts():
            own = self._own_fraction(ordinal)
            if own < _WHOLE and not self.binds(ordinal):
                # The limit does not change it.
                yield (
                    f"cuda:{ordinal}: torch may reserve {bytes_(self.without(ordinal))}, by the "
                    "notebook's own torch.cuda.set_per_process_memory_fraction; "
                    "set_per_process_memory_fraction(1.0) lifts that."
                )
        for ordinal, outside in outside_allocator().items() if self.size is not None else ():
            try:
                _, reserved = torch_cuda.memory_held(ordinal)
            except RuntimeError:  # a pluggable allocator without counters
                continue
            held = reserved + (outside or 0)  # at least, where that is not known
            if held > cast(int, self.size):
                yield (
                    f"cuda:{ordinal}: this process holds {bytes_(held)} already, more than the "
                    "limit; nothing new is reserved there until it holds less: '%gpumem free'."
                )

    def notes(self) -> tuple[str, ...]:
        """Return lines that say what the limit is; none without one."""
        if self.size is None:
            return ()
        limit = (
            f"Limited to {bytes_(self.size)} of each GPU, CUDA context included; "
            "%gpumem limit off lifts it."
        )
        return (limit, *self._notes())

    def lift(self) -> None:
        """Remove the limit: restore the user's own fractions, except where it was set since."""
        self.size = None
        for ordinal, bound in self._bounds.items():
            if allocator.memory_fraction(ordinal) == bound.set:
                allocator.set_memory_fraction(ordinal, bound.own)
        self._bounds.clear()


def _fraction(size: int, total: int) -> float:
    """Return the fraction of which torch, which rounds down, makes this size."""
    found = size / total
    return found if int(found * total) >= size else math.nextafter(found, 1.0)


def _total(ordinal: int) -> int:
    return int(cast(Any, torch_cuda.loaded()).cuda.get_device_properties(ordinal).total_memory)


#: The limit of this process.
LIMIT = MemoryLimit()
