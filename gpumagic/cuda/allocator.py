"""torch's allocator: how much of a device it may reserve, and the graphs that use its pools."""

from __future__ import annotations

import gc
from contextlib import AbstractContextManager, nullcontext
from typing import Any, cast

from gpumagic.cuda import torch_cuda
from gpumagic.errors import DeviceError
from gpumagic.system import introspection, text


def memory_limit(ordinal: int) -> int | None:
    """Return the bytes that torch may reserve on a device, by its size and the memory fraction.

    Only for a device that has a context (`torch_cuda.contexts`). None where the device is lost.
    """
    torch = cast(Any, torch_cuda.loaded())
    try:
        total = torch.cuda.get_device_properties(ordinal).total_memory
    except RuntimeError:  # the device is lost
        return None
    return int(total * memory_fraction(ordinal))


def boundable() -> tuple[int, ...]:
    """Return the CUDA ordinals whose memory fraction can be set without creating a context.

    Those with a context and, since torch 2.10, all others; for use once CUDA is initialised, or
    while it is being initialised.
    """
    torch = cast(Any, torch_cuda.loaded())
    ordinals = range(torch._C._cuda_getDeviceCount())
    if torch.__version__ >= (2, 10):  # earlier ones read the device's size through a context
        return tuple(ordinals)
    return tuple(filter(torch._C._cuda_hasPrimaryContext, ordinals))


def memory_fraction(ordinal: int) -> float:
    """Return the part of a device that torch's allocator may reserve; only for a `boundable` one.

    1 where the allocator has none (a pluggable one).
    """
    try:
        with _current_restored(ordinal):
            return float(cast(Any, torch_cuda.loaded())._C._cuda_getMemoryFraction(ordinal))
    except (RuntimeError, AttributeError):
        return 1.0


def set_memory_fraction(ordinal: int, fraction: float) -> None:
    """Bound torch's allocator on a `boundable` device.

    Raises:
        DeviceError: it cannot be bounded (a pluggable one).
    """
    try:
        with _current_restored(ordinal):
            cast(Any, torch_cuda.loaded()).cuda.set_per_process_memory_fraction(fraction, ordinal)
    except RuntimeError as error:
        raise DeviceError(f"torch cannot bound its allocator ({text.reason(error)})") from None


def _current_restored(ordinal: int) -> AbstractContextManager[Any]:
    """Restore the current device, which torch 2.6 changes in functions of the memory fraction."""
    torch = cast(Any, torch_cuda.loaded())
    # To enter the scope of a device without a context would create one.
    in_use = torch._C._cuda_hasPrimaryContext(ordinal)
    return cast(
        "AbstractContextManager[Any]", torch.cuda.device(ordinal) if in_use else nullcontext()
    )


def captured_graphs() -> int:
    """Return the number of ``torch.cuda.CUDAGraph`` objects that have captured something."""
    base = cast(Any, torch_cuda.loaded())._C._CUDAGraph
    things = gc.get_objects()
    # By `id`: the hash of a type may be the user's code.
    kinds = {id(type(each)): type(each) for each in things}
    graphs = {number for number, kind in kinds.items() if introspection.derives(kind, base)}
    if not graphs:
        return 0
    return sum(_has_captured(base, each) for each in things if id(type(each)) in graphs)


def _has_captured(base: Any, graph: Any) -> bool:
    """Return whether a graph was captured, and not reset since."""
    try:
        base.pool(graph)
    except RuntimeError:
        return False
    return True
