"""Why this process has no GPU to measure: no torch, no CUDA in it, no driver, no device."""

from __future__ import annotations

import os
from functools import cache

from gpumagic.cuda import driver, visible_devices
from gpumagic.cuda.pytorch import torch_cuda

#: The only reason that may change: CUDA may still be initialised.
NOT_IN_USE = "CUDA is not in use in this process"


def machine_has_none() -> bool:
    """Return whether this machine has no GPU, whatever is chosen and however torch is built."""
    if torch_cuda.initialized():
        return False
    return not driver.installed() or (not driver.state().initialized and _nvml_lists_none())


def reason() -> str:
    """Return why this process has no GPU to measure, as a clause. Initialises nothing."""
    if torch_cuda.loaded() is None:
        return "torch is not imported"
    if not torch_cuda.built_with_cuda():
        return "this torch is built without CUDA"
    if torch_cuda.initialized():
        return "no GPU has been used in this process"
    hidden = os.environ.get(visible_devices.MASK)
    if hidden is not None and (not hidden.strip() or hidden.strip().startswith("-")):
        return f"no GPU is visible: {visible_devices.MASK}={hidden.strip()}"
    if not driver.installed():
        return "there is no NVIDIA driver"
    state = driver.state()
    if state.uuids == ():
        return "there is no GPU that CUDA can use"
    if state.initialized:
        return "CUDA has started in this process, but torch has used no GPU in it"
    return "this machine has no GPU" if _nvml_lists_none() else NOT_IN_USE


@cache
def _nvml_lists_none() -> bool:
    from gpumagic.cuda import device_table  # with NVML, which loading the extension leaves alone

    return device_table.read().no_gpu is not None
