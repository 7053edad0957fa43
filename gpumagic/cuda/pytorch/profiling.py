"""The instruments that torch brings: its profiler, NVTX marks, and counter of operations."""

from __future__ import annotations

import inspect
from typing import Any

from gpumagic.cuda.pytorch import torch_cuda


def profiler() -> Any:
    """Return torch's profiler of host and GPU, a context manager."""
    module = torch_cuda.module().profiler
    activities = module.ProfilerActivity
    return module.profile(activities=[activities.CPU, activities.CUDA])


def is_active() -> bool:
    """Return whether torch's profiler is active in this thread."""
    return bool(torch_cuda.module().autograd._profiler_enabled())


def nvtx() -> Any:
    """Return ``torch.cuda.nvtx``; None where torch has none."""
    return torch_cuda.module().cuda.nvtx if hasattr(torch_cuda.c_functions(), "_nvtx") else None


def flop_counter() -> Any:
    """Return a context manager that counts the operations of its body: ``get_total_flops()``.

    torch's counts by the shapes of matrix products, convolutions and attention; it changes how
    operations are dispatched, so that it has a run of its own.

    Raises:
        DeviceError: torch cannot be imported.
    """
    torch_cuda.require()
    from torch.utils.flop_counter import FlopCounterMode

    options: dict[str, Any] = {"display": False}
    if "skip_unsupported" in inspect.signature(FlopCounterMode).parameters:
        options["skip_unsupported"] = True  # else a Triton kernel is counted, but not run
    return FlopCounterMode(**options)
