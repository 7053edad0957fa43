"""GPUs that are not CUDA's: a table of what torch offers to time them and to synchronise.

CUDA and ROCm, whose torch has the same names, are timed on every stream (`event_timer`). The others
by an event pair on the current stream, where torch has timing events; and where it has none, by the
host's clock around a synchronise, which the result says.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from typing import Any, cast

from gpumagic.cuda import torch_cuda
from gpumagic.system import text
from gpumagic.timing.event_timer import Reading
from gpumagic.timing.launch_overhead import Delay


@dataclass(frozen=True)
class Backend:
    """A kind of device, by torch's name for it."""

    kind: str
    #: The name to show.
    label: str
    #: Waits for all work of the device.
    synchronize: Callable[[], Any]
    #: Makes a timing event, with ``record``, ``query``, ``synchronize`` and ``elapsed_time``
    #: (milliseconds); None where torch has none.
    event: Callable[[], Any] | None


#: torch's module, the name to show, and whether the module has timing events.
TABLE = {
    "cuda": ("NVIDIA CUDA, or AMD ROCm", True),
    "mps": ("Apple MPS", True),
    "xpu": ("Intel XPU", True),
}


def label() -> str:
    """Return the name of the GPUs behind the loaded torch's ``cuda``."""
    version = getattr(torch_cuda.loaded(), "version", None)
    return "AMD ROCm" if getattr(version, "hip", None) else "NVIDIA CUDA"


def active() -> Backend | None:
    """Return the backend in use that is not CUDA's, if any. Initialises nothing."""
    torch: Any = torch_cuda.loaded()
    if torch is None or torch_cuda.built_with_cuda():
        return None
    for kind, (name, has_events) in TABLE.items():
        module = getattr(torch, kind, None)
        if kind == "cuda" or module is None or not _is_in_use(torch, kind):
            continue
        event = getattr(module, "Event", None) if has_events else None
        make = None if event is None else lambda made=event: made(enable_timing=True)
        return Backend(kind, name, module.synchronize, make)
    accelerator = getattr(torch, "accelerator", None)  # from torch 2.6 on
    if accelerator is not None and accelerator.is_available():
        kind = accelerator.current_accelerator().type
        return Backend(kind, kind, accelerator.synchronize, None)
    return None


def _is_in_use(torch: Any, kind: str) -> bool:
    module = torch.backends.mps if kind == "mps" else getattr(torch, kind)
    if not module.is_available():
        return False
    # XPU is initialised when it is first used, as CUDA is; MPS has no `is_initialized`.
    return bool(getattr(module, "is_initialized", lambda: True)())


class EventPair:
    """An `EventTimer` for a device of another kind: one pair of events on the current stream."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.note: str | None = None
        self._start = self._stop = None

    def prepare(self) -> None:
        """Wait until the device is idle; make events."""
        self.note = None
        try:
            self.backend.synchronize()
            if self.backend.event is not None and self._start is None:
                self._start, self._stop = self.backend.event(), self.backend.event()
        except RuntimeError as error:
            self._give_up(error)

    def _give_up(self, error: RuntimeError) -> None:
        self.note = f"{self.backend.label} cannot be waited for ({text.reason(error)})"

    def start(self, delay: Delay | None = None) -> None:
        """Record the start event. There is no delay kernel here."""
        if self._start is not None and self.note is None:
            cast(Any, self._start).record()

    def stop(self) -> None:
        """Record the end event."""
        if self._stop is not None and self.note is None:
            cast(Any, self._stop).record()

    def finish(self, host_start: float, host_stop: float) -> dict[int, Reading]:
        """Wait for the device, and return what it did; its ordinal is 0."""
        if self.note is not None:
            return {}
        try:
            self.backend.synchronize()
            finished = perf_counter()
            if self._start is None:
                return {0: Reading(finished - host_start, False, True, finished)}
            seconds = float(cast(Any, self._start).elapsed_time(self._stop)) / 1e3
        except RuntimeError as error:
            self._give_up(error)
            return {}
        return {0: Reading(min(seconds, finished - host_start), False, True, finished)}

    @property
    def remark(self) -> str | None:
        """A caveat on the times."""
        if self.backend.event is None:
            return f"{self.backend.label}: wall time until the device was idle, not GPU time"
        return f"{self.backend.label}: from events on the current stream"
