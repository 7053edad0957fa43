"""The variable that makes torch query NVML, not CUDA, for whether there is a GPU.

torch reads ``PYTORCH_NVML_BASED_CUDA_CHECK`` on every ``torch.cuda.is_available()`` and then
queries NVML instead of initialising the driver, so that a later choice of GPUs still takes effect.
NVML knows the machine's devices, but not whether CUDA works in this process, so the variable is
unset as soon as CUDA is initialised or has failed.
"""

from __future__ import annotations

import os
import sys

from gpumagic.cuda.process_state import STATE

VARIABLE = "PYTORCH_NVML_BASED_CUDA_CHECK"

_LIBRARY = "libnvidia-ml.so.1"
#: Files that exist where a driver is loaded: on Linux, and on WSL.
_LOADED = ("/proc/driver/nvidia/version", "/dev/dxg")


def is_ours() -> bool:
    """Return whether the variable is set, and was set when gpumagic was loaded."""
    return STATE.nvml_check_set and os.environ.get(VARIABLE) == "1"


def withdraw() -> None:
    """Unset the variable if `is_ours`."""
    if is_ours():
        del os.environ[VARIABLE]
    STATE.nvml_check_set = False


def withdraw_if_useless() -> None:
    """Unset the variable, if `is_ours`, where NVML is installed but cannot be initialised.

    torch would warn of that on every query, and then query CUDA after all. NVML is tried only
    where no file of a loaded driver exists: with a driver, its initialisation may take long.
    """
    if not is_ours() or sys.platform != "linux":
        return
    import ctypes

    from gpumagic.system import system_files

    if any(system_files.at(file).exists() for file in _LOADED):
        return
    try:
        library = ctypes.CDLL(_LIBRARY)
    except OSError:  # without NVML torch does not warn
        return
    if library.nvmlInit_v2() != 0:
        withdraw()
    else:
        library.nvmlShutdown()
