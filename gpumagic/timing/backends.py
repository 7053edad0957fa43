"""GPUs that are not CUDA's: Apple MPS, Intel XPU and whatever torch calls an accelerator.

CUDA and ROCm, whose torch has the same names, are timed on every stream (`event_timer`). The others
by an event pair on the current stream, where torch has timing events; and where it has none, by the
host's clock around a synchronise, which the result says.
"""

from __future__ import annotations

from time import perf_counter
from typing import Any, cast

from gpumagic.cuda import torch_cuda
from gpumagic.system import text
from gpumagic.timing.delay import Delay
from gpumagic.timing.event_timer import Reading


def active() -> str | None:
    """Return torch's name of the accelerator in use that is not CUDA's, if any; starts none."""
    torch: Any = torch_cuda.loaded()
    if torch is None or torch_cuda.built_with_cuda() or not torch.accelerator.is_available():
        return None
    kind = str(torch.accelerator.current_accelerator().type)
    # XPU is initialised when it is first used, as CUDA is.
    is_initialized = getattr(getattr(torch, kind, None), "is_initialized", lambda: True)
    return kind if is_initialized() else None


class EventPair:
    """An `EventTimer` for a device of another kind; its ordinal is 0."""

    def __init__(self, kind: str) -> None:
        torch = cast(Any, torch_cuda.loaded())
        module = getattr(torch, kind, torch.accelerator)
        self.kind = kind
        self._synchronize = module.synchronize
        event = getattr(module, "Event", None)
        self._events = None if event is None else [event(enable_timing=True) for _ in range(2)]
        self.note: str | None = None
        #: A caveat on the times.
        self.remark = f"{kind}: from events on the current stream"
        if event is None:
            self.remark = f"{kind}: wall time until the device was idle, not GPU time"

    def prepare(self) -> None:
        """Wait until the device is idle."""
        self.note = None
        try:
            self._synchronize()
        except RuntimeError as error:
            self.note = f"{self.kind} cannot be waited for ({text.reason(error)})"

    def start(self, delay: Delay | None = None) -> None:
        """Record the start event. There is no delay kernel here."""
        if self._events is not None and self.note is None:
            self._events[0].record()

    def stop(self) -> None:
        """Record the end event."""
        if self._events is not None and self.note is None:
            self._events[1].record()

    def finish(self, host_start: float, host_stop: float) -> dict[int, Reading]:
        """Wait for the device, and return what it did."""
        if self.note is None:
            self.prepare()
        if self.note is not None:
            return {}
        finished = perf_counter()
        seconds = finished - host_start
        if self._events is not None:
            seconds = min(float(self._events[0].elapsed_time(self._events[1])) / 1e3, seconds)
        return {0: Reading(seconds, False, True, finished)}
