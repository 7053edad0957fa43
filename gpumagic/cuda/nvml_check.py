"""The variable by which torch is to ask NVML, not CUDA, whether there is a GPU.

torch reads ``PYTORCH_NVML_BASED_CUDA_CHECK`` on every ``torch.cuda.is_available()`` and then asks
NVML instead of initialising the driver, so that a later choice of GPUs still takes effect. NVML
knows the machine's devices and not this process's fate, so the variable goes as soon as it protects
nothing any more, or would make torch say what is not true.
"""

from __future__ import annotations

import os
import sys

VARIABLE = "PYTORCH_NVML_BASED_CUDA_CHECK"

_LIBRARY = "libnvidia-ml.so.1"
#: What is there where a driver is loaded: Linux's own, and that of Windows below it.
_LOADED = ("/proc/driver/nvidia/version", "/dev/dxg")

_ours = False


def set_variable() -> None:
    """Set the variable, unless the user has one."""
    global _ours
    if VARIABLE not in os.environ:
        os.environ[VARIABLE] = "1"
        _ours = True


def is_ours() -> bool:
    """Whether the variable stands in the environment because of us."""
    return _ours and os.environ.get(VARIABLE) == "1"


def withdraw() -> None:
    """Take our variable back. Not ours, or changed since: nothing."""
    global _ours
    if is_ours():
        del os.environ[VARIABLE]
    _ours = False


def withdraw_if_useless() -> None:
    """Take our variable back where NVML's library is there, and cannot be initialised.

    torch would warn of that on every question, and then ask CUDA after all. NVML is asked only
    where no sign of a loaded driver is seen: with one, it may take long to answer.
    """
    if not is_ours() or sys.platform != "linux":
        return
    import ctypes

    from gpumagic.system import system_files

    if any(system_files.at(sign).exists() for sign in _LOADED):
        return
    try:
        library = ctypes.CDLL(_LIBRARY)
    except OSError:  # torch, too, does without and says nothing
        return
    if library.nvmlInit_v2() != 0:
        withdraw()
    else:
        library.nvmlShutdown()
