"""CUDA's events: marks in a stream, between which the GPU's time is read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpumagic.cuda.pytorch import torch_cuda

if TYPE_CHECKING:
    from torch.cuda import Stream

#: The resolution of the time between two CUDA events, in seconds (``cudaEventElapsedTime``).
RESOLUTION = 0.5e-6


def timing_event(stream: Stream) -> Any:
    """Return an event with timing enabled, recorded on ``stream``."""
    event = torch_cuda.module().cuda.Event(enable_timing=True)
    event.record(stream)
    return event


def seconds_between(first: Any, last: Any) -> float:
    """Return the seconds from one event to another: torch's C function, which no cell replaces."""
    return float(torch_cuda.module()._C._CudaEventBase.elapsed_time(first, last)) / 1e3
