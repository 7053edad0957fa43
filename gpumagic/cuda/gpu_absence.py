"""The reason why this process has no GPU to measure."""

from __future__ import annotations

import os
import warnings
from functools import cache
from typing import Any

from gpumagic.cuda import driver, torch_cuda

#: The only reason that may change: CUDA may still be initialised.
NOT_IN_USE = "CUDA is not in use in this process"


_NO_DRIVER, _NO_GPU = "there is no NVIDIA driver", "this machine has no GPU"


def is_certain() -> bool:
    """Return whether this machine has no GPU for torch, whatever is chosen or initialised."""
    return reason() in (_NO_DRIVER, _NO_GPU)


def reason() -> str:
    """Return why this process has no GPU to measure, as a clause. Initialises nothing."""
    torch = torch_cuda.loaded()
    if torch is None:
        return "torch is not imported"
    if not torch_cuda.built_with_cuda():
        return "this torch is built without CUDA"
    if torch_cuda.initialized():
        return "no GPU has been used in this process"
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
    if hidden is not None and (not hidden.strip() or hidden.strip().startswith("-")):
        return f"no GPU is visible: CUDA_VISIBLE_DEVICES={hidden.strip()}"
    if not driver.installed():
        return _NO_DRIVER
    if driver.state().uuids == ():
        return "there is no GPU that CUDA can use"
    if _counted_by_nvml(torch) == 0:
        return _NO_GPU
    return NOT_IN_USE


@cache
def _counted_by_nvml(torch: Any) -> int:
    """Return the number of devices as torch counts them by NVML; -1 where it cannot."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return int(torch.cuda._raw_device_count_nvml())
        except (AttributeError, OSError):  # NVML's library is missing, or older
            return -1
