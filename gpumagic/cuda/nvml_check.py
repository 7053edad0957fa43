"""The variable by which ``torch.cuda.is_available()`` does not initialise CUDA.

Until CUDA is initialised ``PYTORCH_NVML_BASED_CUDA_CHECK`` is set. torch reads it on every
``torch.cuda.is_available()`` and queries NVML instead of initialising the driver, so that a later
choice of GPUs still takes effect. NVML knows the machine's devices, but not whether CUDA works in
this process, so the variable is unset as soon as CUDA is initialised or has failed.
"""

from __future__ import annotations

import os
from contextlib import suppress

from gpumagic.cuda.this_process import STATE

#: The variable that makes torch query NVML.
VARIABLE = "PYTORCH_NVML_BASED_CUDA_CHECK"
_NVML = "libnvidia-ml.so.1"
#: Files that exist where a driver is loaded: on Linux, and on WSL.
_LOADED = ("/proc/driver/nvidia/version", "/dev/dxg")


def is_ours() -> bool:
    """Return whether the variable is set, and was set when gpumagic was loaded."""
    return STATE.nvml_check_set and os.environ.get(VARIABLE) == "1"


def withdraw() -> None:
    """Unset the variable if it is ours."""
    if is_ours():
        del os.environ[VARIABLE]
    STATE.nvml_check_set = False


def withdraw_without_driver() -> None:
    """Unset the variable, if it is ours, where CUDA's driver library is missing, but not NVML.

    torch would count GPUs that it cannot use. Loads the library, as the import of torch does.
    """
    from gpumagic.cuda import driver

    if is_ours() and not driver.installed():
        withdraw()


def withdraw_if_useless() -> None:
    """Unset the variable, if it is ours, where NVML is installed but cannot be initialised.

    torch would warn of that on every query, and then query CUDA after all. NVML is tried only
    where no file of a loaded driver exists: with a driver, its initialisation may take long.
    """
    import ctypes

    from gpumagic.system import system_files

    loaded = any(system_files.at(file).exists() for file in _LOADED)
    if loaded or not is_ours():
        return
    with suppress(OSError):  # without NVML torch does not warn
        library = ctypes.CDLL(_NVML)
        if library.nvmlInit_v2() == 0:
            library.nvmlShutdown()
        else:
            withdraw()
