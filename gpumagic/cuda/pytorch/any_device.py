"""`gpumagic.device`: the device for code that runs with a GPU and without one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, cast

from gpumagic.cuda import nvml_check
from gpumagic.cuda.pytorch import torch_cuda

if TYPE_CHECKING:
    from torch import device as _Device  # noqa: N812 - `device` is a function here

#: The devices of the open scopes of `chosen`, the innermost last.
_chosen: list[_Device] = []


@contextmanager
def chosen(which: _Device) -> Iterator[None]:
    """Make `device` return ``which`` within the scope."""
    _chosen.append(which)
    try:
        yield
    finally:
        _chosen.pop()


def device() -> _Device:
    """Return the device for device-agnostic code: CUDA (or ROCm) if present, else MPS, XPU or CPU.

    Imports torch. With ``%load_ext gpumagic`` the call does not initialise the driver, so that
    a later ``%gpu off`` still works.

    Raises:
        DeviceError: torch cannot be imported.

    Examples:
        >>> gpumagic.device()
        device(type='cuda')

    .. versionadded:: 0.1.0
    """
    torch = torch_cuda.require()
    if _chosen:
        return _chosen[-1]
    nvml_check.withdraw_without_driver()
    if torch.cuda.is_available():
        return cast("_Device", torch.device("cuda"))
    for kind in ("mps", "xpu"):
        backend = getattr(torch, kind, None)
        if backend is not None and backend.is_available():
            return cast("_Device", torch.device(kind))
    return cast("_Device", torch.device("cpu"))
