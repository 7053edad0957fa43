"""A bound on torch's allocator, as if each device had so much memory in all.

``torch.cuda.set_per_process_memory_fraction`` bounds the caching allocator alone, not the context
or libraries, which count here too: so the allocator's share of a limit is what this process does
not hold outside of it. Where the limit is reached, torch raises its own out-of-memory error.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

from gpumagic.cuda import memory_fraction, torch_cuda
from gpumagic.errors import DeviceError
from gpumagic.memory.report import memory_report, outside_allocator
from gpumagic.render.units import bytes_
from gpumagic.results.limit import LimitState
from gpumagic.system import text

#: The bytes outside the allocator that are assumed where they are not known.
_UNKNOWN = 0
#: A fraction from here on is none.
_WHOLE = 0.999


@dataclass(frozen=True)
class _Bound:
    """The fractions of one device."""

    #: The user's own, by ``torch.cuda.set_per_process_memory_fraction``.
    own: float
    #: The one that was set for the limit, as torch returns it.
    set: float


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
            DeviceError: torch cannot bound its allocator, or a limit is smaller than what this
                process holds outside of it.
        """
        torch_cuda.require()
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
        for ordinal, memory in devices.items():
            outside = memory.outside or _UNKNOWN
            if memory.context and outside >= size:
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
            for ordinal in {*memory_fraction.boundable(), current}:
                self._bound(ordinal, _UNKNOWN)
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
        outside = outside_allocator()
        for ordinal in memory_fraction.boundable():
            self._bound(ordinal, outside.get(ordinal) or _UNKNOWN)

    def _bound(self, ordinal: int, outside: int) -> None:
        wanted = (cast(int, self.size) - outside) / _total(ordinal)
        own = self._own_fraction(ordinal)
        memory_fraction.set_memory_fraction(ordinal, min(max(wanted, 0.0), own))
        self._bounds[ordinal] = _Bound(own, memory_fraction.memory_fraction(ordinal))

    def _own_fraction(self, ordinal: int) -> float:
        """Return the user's own fraction: the current one unless that was set for the limit."""
        current, bound = memory_fraction.memory_fraction(ordinal), self._bounds.get(ordinal)
        return current if bound is None or current != bound.set else bound.own

    def binds(self, ordinal: int) -> bool:
        """Return whether the limit bounds a device's allocator, and no smaller fraction does."""
        bound = self._bounds.get(ordinal)
        return (
            self.size is not None
            and bound is not None
            and bound.set < bound.own
            and memory_fraction.memory_fraction(ordinal) == bound.set
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
            held = reserved + (outside or _UNKNOWN)
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
            if memory_fraction.memory_fraction(ordinal) == bound.set:
                memory_fraction.set_memory_fraction(ordinal, bound.own)
        self._bounds.clear()


def _total(ordinal: int) -> int:
    return int(cast(Any, torch_cuda.loaded()).cuda.get_device_properties(ordinal).total_memory)


#: The limit of this process.
LIMIT = MemoryLimit()
