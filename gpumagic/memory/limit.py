"""A bound on torch's allocator, as if each device had so much memory in all.

``torch.cuda.set_per_process_memory_fraction`` bounds the caching allocator alone, not the context
or libraries, which count here too: so the allocator's share of a limit is what this process does
not hold outside of it. Where the limit is reached, torch raises its own out-of-memory error.
"""

from __future__ import annotations

from typing import Any, cast

from gpumagic.cuda import torch_cuda
from gpumagic.errors import DeviceError
from gpumagic.memory.report import memory_report
from gpumagic.render.units import bytes_
from gpumagic.system import text

#: The bytes outside the allocator that are assumed where they are not known.
_UNKNOWN = 0


class MemoryLimit:
    """The limit of this process, and the user's own fractions from before."""

    def __init__(self) -> None:
        #: Bytes of each device; None for no limit.
        self.size: int | None = None
        self._before: dict[int, float] = {}
        self._waits = False

    def set(self, size: int) -> None:
        """Bound torch's allocator on every device in use; on others by `update`, once they are.

        Raises:
            DeviceError: torch cannot bound its allocator, or a limit is smaller than what this
                process holds outside of it.
        """
        torch_cuda.require()
        self._check(size)
        self.size = size
        if not torch_cuda.initialized():
            if not self._waits:
                self._waits = True
                torch_cuda.when_initialized(self._begin)
            return
        self.update()

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
        """Bound the current device as CUDA starts, before anything is allocated.

        Not the others: in older torch the bound itself makes a context.
        """
        self._waits = False
        if self.size is None:
            return
        current = torch_cuda.current_device()
        if current is not None:
            self._bound(current, _UNKNOWN)

    def update(self) -> None:
        """Bound the devices anew: libraries may hold more outside the allocator than before."""
        if self.size is None or not torch_cuda.initialized():
            return
        for ordinal, memory in memory_report().devices.items():
            if memory.context:
                self._bound(ordinal, memory.outside or _UNKNOWN)

    def _bound(self, ordinal: int, outside: int) -> None:
        torch: Any = torch_cuda.loaded()
        total = torch.cuda.get_device_properties(ordinal).total_memory
        fraction = min(max((cast(int, self.size) - outside) / total, 0.0), 1.0)
        before = self._before.setdefault(ordinal, _fraction(ordinal))
        _set_fraction(ordinal, min(fraction, before))

    def note(self) -> str | None:
        """Return a line that says what the limit is; None for none."""
        if self.size is None:
            return None
        return (
            f"Limited to {bytes_(self.size)} of each GPU, CUDA context included; "
            "%gpumem limit off lifts it."
        )

    def lift(self) -> None:
        """Remove the limit: restore the user's own fractions."""
        self.size = None
        for ordinal, fraction in self._before.items():
            _set_fraction(ordinal, fraction)
        self._before.clear()


def _fraction(ordinal: int) -> float:
    torch: Any = torch_cuda.loaded()
    try:
        # The guard: torch 2.6 leaves the device the current one.
        with torch.cuda.device(ordinal):
            return float(torch._C._cuda_getMemoryFraction(ordinal))
    except (RuntimeError, AttributeError):
        return 1.0


def _set_fraction(ordinal: int, fraction: float) -> None:
    torch: Any = torch_cuda.loaded()
    try:
        # The guard: torch 2.6 leaves the device the current one.
        with torch.cuda.device(ordinal):
            torch.cuda.set_per_process_memory_fraction(fraction, ordinal)
    except RuntimeError as error:
        raise DeviceError(f"torch cannot bound its allocator ({text.reason(error)})") from None


#: The limit of this process.
LIMIT = MemoryLimit()
