"""``%gpumem limit``: as if each device had only so much memory for torch's allocator.

By ``torch.cuda.set_per_process_memory_fraction``, which bounds what the allocator reserves; the
CUDA context and libraries come on top (300 to 500 MiB). Where the limit is reached, torch raises
its own out-of-memory error.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any, cast

from gpumagic.cuda import no_gpu
from gpumagic.cuda.pytorch import allocator, torch_cuda
from gpumagic.errors import DeviceError
from gpumagic.memory.report import memory_report
from gpumagic.render.units import bytes_
from gpumagic.results.memory.limit import LimitState
from gpumagic.system import output, text

#: The torch that bounds a device without a context; an earlier one makes one, to read its size.
_BEFORE_USE = (2, 10)


class MemoryLimit:
    """The limit of this process, and the user's own fractions."""

    def __init__(self) -> None:
        #: Bytes of each device, or, as a float, a part of each; None for no limit.
        self.size: int | float | None = None
        #: By ordinal, the fraction before, and the one that was set.
        self._fractions: dict[int, tuple[float, float]] = {}
        #: One object, by which it is cancelled: each ``self._begin`` is another.
        self._at_start = self._begin

    def set(self, size: int | float) -> None:
        """Bound torch's allocator on every device, or when CUDA is initialised.

        Does nothing on a machine without a GPU, as `state` says.

        Args:
            size: Bytes of each device; a float is a part of each, 0 to 1.

        Raises:
            DeviceError: torch cannot bound its allocator; nothing was changed.
        """
        torch_cuda.require()
        if no_gpu.machine_has_none():
            return
        if why := allocator.uncounted():
            raise DeviceError(f"no limit was set: {why}")
        self.lift()
        self.size = size
        if torch_cuda.initialized():
            try:
                self._bound()
            except BaseException:
                self.lift()
                raise
        else:
            torch_cuda.when_initialized(self._at_start)

    def _begin(self) -> None:
        """Bound the devices while torch initialises CUDA, before anything is allocated."""
        try:
            self._bound()
        except Exception as error:  # torch would raise it in the user's cell
            self.lift()
            output.complain(f"%gpumem limit: no limit was set ({text.named(error)})")

    def apply(self) -> None:
        """Bound the devices that are not bounded yet.

        Before torch 2.10 one of several can be bounded only once it is in use.

        Raises:
            DeviceError: torch cannot bound its allocator.
        """
        if self.size is not None and torch_cuda.initialized():
            self._bound()

    def _bound(self) -> None:
        for ordinal in _boundable():
            if ordinal not in self._fractions:
                own = _current_fraction(ordinal)
                # The user's own, smaller fraction stays.
                set_fraction(ordinal, min(self._fraction(ordinal), own))
                self._fractions[ordinal] = own, _current_fraction(ordinal)

    def _fraction(self, ordinal: int) -> float:
        """Return the fraction of a device of which torch, which rounds down, makes the limit."""
        size, total = cast("int | float", self.size), _total(ordinal)
        if isinstance(size, float):
            return min(size, 1.0)
        return min(math.nextafter(size / total, 1.0), 1.0)

    def limits(self) -> LimitState:
        """Return what torch may reserve of each device that is in use.

        By the limit, or by the user's own fraction.
        """
        found, theirs = dict[int, int](), list[int]()
        for ordinal in () if allocator.uncounted() else torch_cuda.contexts():
            fraction = _current_fraction(ordinal)
            own, ours = self._fractions.get(ordinal, (1.0, 1.0))
            if fraction < 1:
                found[ordinal] = int(_total(ordinal) * fraction)
                if not fraction == ours < own:
                    theirs.append(ordinal)
        return LimitState(self.size, found, tuple(theirs))

    def state(self) -> LimitState:
        """Bound what is in use by now; return the limits, and what is to be said of them."""
        if no_gpu.machine_has_none():
            return LimitState(notes=(f"there is no GPU to limit: {no_gpu.reason()}",))
        self.apply()
        limits = self.limits()
        return replace(limits, notes=tuple(self._notes(limits)))

    def _notes(self, limits: LimitState) -> Iterator[str]:
        if why := allocator.uncounted():
            yield why
        for ordinal, limit in limits.devices.items():
            _, reserved = allocator.held(ordinal)
            if reserved > limit:
                yield (
                    f"cuda:{ordinal}: torch has reserved {bytes_(reserved)} already, more than the "
                    "limit; nothing new is reserved there until it is less: '%gpumem free'."
                )
        if self.size is None:
            return
        devices = memory_report().devices
        for ordinal, memory in devices.items():
            if memory.total is not None and self.size >= memory.total:
                yield f"cuda:{ordinal} has {bytes_(memory.total)}: nothing is limited there."
        # The only one is bounded when CUDA starts.
        if not _without_context() and len(devices) > max(len(self._fractions), 1):
            yield (
                "This torch bounds one of several devices once it is in use: write %gpumem limit "
                "again after the first tensor on it."
            )

    def lift(self) -> None:
        """Remove the limit: restore the user's own fractions, except where one was set since."""
        self.size = None
        torch_cuda.cancel(self._at_start)
        for ordinal, (own, ours) in self._fractions.items():
            if _current_fraction(ordinal) == ours:
                set_fraction(ordinal, own)
        self._fractions.clear()


# --- torch's fraction ----------------------------------------------------------------------------


def memory_limit(ordinal: int) -> int | None:
    """Return the bytes that torch may reserve on a device, by its size and the memory fraction.

    Only for a device that has a context (`torch_cuda.contexts`). None where the device is lost.
    """
    try:
        return int(_total(ordinal) * _current_fraction(ordinal))
    except RuntimeError:  # the device is lost
        return None


def _total(ordinal: int) -> int:
    return int(torch_cuda.module().cuda.get_device_properties(ordinal).total_memory)


def _boundable() -> tuple[int, ...]:
    """Return the CUDA ordinals whose memory fraction can be set.

    Since torch 2.10 all. Before that it creates a context: those that have one, or the only device,
    which is about to be used. For use once CUDA is initialised, or while it is being initialised.
    """
    torch = torch_cuda.module()
    ordinals = range(torch._C._cuda_getDeviceCount())
    if _without_context() or len(ordinals) == 1:
        return tuple(ordinals)
    return tuple(filter(torch._C._cuda_hasPrimaryContext, ordinals))


def _without_context() -> bool:
    """Return whether this torch bounds a device that has no context, and creates none."""
    return bool(torch_cuda.module().__version__ >= _BEFORE_USE)


def _current_fraction(ordinal: int) -> float:
    """Return the part of a device that torch's allocator may reserve; only for a `_boundable` one.

    1 where the allocator has none (a pluggable one).
    """
    try:
        with _current_restored(ordinal):
            return float(torch_cuda.module()._C._cuda_getMemoryFraction(ordinal))
    except (RuntimeError, AttributeError):
        return 1.0


def set_fraction(ordinal: int, fraction: float) -> None:
    """Bound torch's allocator on a `_boundable` device.

    Raises:
        DeviceError: it cannot be bounded (a pluggable one).
    """
    try:
        with _current_restored(ordinal):
            torch_cuda.module().cuda.set_per_process_memory_fraction(fraction, ordinal)
    except RuntimeError as error:
        raise DeviceError(f"torch cannot bound its allocator ({text.reason(error)})") from None


def _current_restored(ordinal: int) -> AbstractContextManager[Any]:
    """Restore the current device, which torch 2.6 changes in functions of the memory fraction."""
    torch = torch_cuda.module()
    # To enter the scope of a device without a context would create one.
    in_use = torch._C._cuda_hasPrimaryContext(ordinal)
    return torch.cuda.device(ordinal) if in_use else nullcontext()


#: The limit of this process.
LIMIT = MemoryLimit()
