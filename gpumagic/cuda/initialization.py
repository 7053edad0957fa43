"""Where CUDA was initialised in this process, as observed; and the variable that puts it off.

Until CUDA is initialised ``PYTORCH_NVML_BASED_CUDA_CHECK`` is set. torch reads it on every
``torch.cuda.is_available()`` and queries NVML instead of initialising the driver, so that a later
choice of GPUs still takes effect. NVML knows the machine's devices, but not whether CUDA works in
this process, so the variable is unset as soon as CUDA is initialised or has failed.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress

from gpumagic.cuda.this_process import STATE

#: The variable that makes torch query NVML.
NVML_CHECK = "PYTORCH_NVML_BASED_CUDA_CHECK"
_NVML = "libnvidia-ml.so.1"
#: Files that exist where a driver is loaded: on Linux, and on WSL.
_LOADED = ("/proc/driver/nvidia/version", "/dev/dxg")


def location() -> str | None:
    """Return where CUDA was initialised, as a sentence; None where that is not known."""
    trace = STATE.init_trace
    if trace is None:
        return None
    trace.check()
    return str(trace.location) if trace.location else None


def environment_then() -> Mapping[str, str] | None:
    """Return the environment right after CUDA was initialised; None where not observed."""
    return None if STATE.init_trace is None else STATE.init_trace.environment


def nvml_check_is_ours() -> bool:
    """Return whether the variable is set, and was set when gpumagic was loaded."""
    return STATE.nvml_check_set and os.environ.get(NVML_CHECK) == "1"


def withdraw_nvml_check() -> None:
    """Unset the variable if it is ours."""
    if nvml_check_is_ours():
        del os.environ[NVML_CHECK]
    STATE.nvml_check_set = False


def withdraw_without_driver() -> None:
    """Unset the variable, if it is ours, where CUDA's driver library is missing, but not NVML.

    torch would count GPUs that it cannot use. Loads the library, as the import of torch does.
    """
    from gpumagic.cuda import driver

    if nvml_check_is_ours() and not driver.installed():
        withdraw_nvml_check()


def withdraw_if_useless() -> None:
    """Unset the variable, if it is ours, where NVML is installed but cannot be initialised.

    torch would warn of that on every query, and then query CUDA after all. NVML is tried only
    where no file of a loaded driver exists: with a driver, its initialisation may take long.
    """
    import ctypes

    from gpumagic.system import system_files

    loaded = any(system_files.at(file).exists() for file in _LOADED)
    if loaded or not nvml_check_is_ours():
        return
    with suppress(OSError):  # without NVML torch does not warn
        library = ctypes.CDLL(_NVML)
        if library.nvmlInit_v2() == 0:
            library.nvmlShutdown()
        else:
            withdraw_nvml_check()
