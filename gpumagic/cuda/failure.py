"""Find out why this process cannot use a GPU: CUDA did not start, its context died, there is none.

- **A failed start.** Where every GPU is hidden, a backward pass on the CPU is enough to initialise
  CUDA, which fails, and the runtime does not try again. The driver still reports that it is not
  initialised: only the runtime reports the failure, in a forked copy of this process. So it is
  queried once, and only where a failure is likely.
- **A dead context.** A failed kernel (an assertion, an illegal address) and a lost device make
  every later call fail until the process ends. The error's text alone does not show it, since a
  worker process's error arrives as text too: a context is queried, by a call that waits for
  nothing.
- **No GPU**: no torch, no CUDA in it, no driver, no device, or none in use.

What is found out is kept in `gpumagic.cuda.this_process`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from functools import cache

from gpumagic.cuda import driver, initialization, probe, torch_cuda, visible_devices
from gpumagic.cuda.this_process import STATE
from gpumagic.results.devices import DeviceTable

# --- a failed start ------------------------------------------------------------------------------


def suspect(*, hidden: bool) -> None:
    """Note that CUDA may have failed to initialise; ``hidden`` if all devices are, or were, hidden.

    Does nothing for a torch without CUDA support: it is torch's initialisation that fails.
    """
    if torch_cuda.built_with_cuda():
        state = STATE.init_failure
        state.suspected, state.hidden = True, state.hidden or hidden


def note_mask(environment: Mapping[str, str | None]) -> None:
    """Note which devices these variables, current or earlier ones, show torch; reads no device."""
    mask = environment.get(visible_devices.MASK)
    if mask is not None and torch_cuda.loaded() is not None:
        STATE.init_failure.masks.add(mask)


def suspected(table: DeviceTable) -> bool:
    """Return whether CUDA may have failed to initialise and the runtime was not queried.

    It may have while all devices of the table were hidden from torch.
    """
    state = STATE.init_failure
    if any(visible_devices.hides_all({visible_devices.MASK: mask}, table) for mask in state.masks):
        suspect(hidden=True)
    state.masks.clear()
    return state.suspected


def query_start(*, hidden: bool = False) -> probe.Start:
    """Return how CUDA starts in a forked copy of this process.

    ``hidden`` where the variables hide all devices: they do not from the copy, and a later start
    here would still fail.
    """
    state, start = STATE.init_failure, probe.in_fork(shown=hidden)
    state.reason = start.reason
    if start.count is not None:
        state.failed = start.count == 0
        state.suspected = state.failed or hidden
        if state.failed:
            # With it torch would return NVML's count of devices.
            initialization.withdraw_nvml_check()
    return start


def has_failed(table: DeviceTable) -> bool:
    """Return whether CUDA has failed to initialise, as far as known.

    It is queried if needed: once, or each time while all devices are hidden.
    """
    state = STATE.init_failure
    hidden = all(device.visible is False for device in table)
    if state.failed or (hidden and driver.loaded_library() is None):  # nothing has asked for it
        return state.failed
    if hidden:
        suspect(hidden=True)
    if suspected(table) and table.cuda_initialized is False and table.devices:
        query_start(hidden=hidden)
    return state.failed


# --- a dead context ------------------------------------------------------------------------------

#: By the text of each error that leaves "the process in an inconsistent state" (``cudaError_t`` in
#: the CUDA runtime's documentation), what has happened.
FATAL = {
    "device-side assert triggered": (
        "an assertion in a GPU kernel failed, mostly an index out of range"
    ),
    "illegal memory access": "a GPU kernel accessed an illegal address",
    "misaligned address": "a GPU kernel accessed a misaligned address",
    "unspecified launch failure": "a GPU kernel failed on the device",
    "illegal instruction": "a GPU kernel ran an illegal instruction",
    "hardware stack error": "a GPU kernel's stack was corrupted",
    "invalid program counter": "a GPU kernel's program counter was invalid",
    "operation not supported on global/shared address space": "a GPU kernel failed on the device",
    "launch timed out": "a GPU kernel ran longer than the driver allows",
    "uncorrectable ECC error": "the device's memory has an uncorrectable error",
    "uncorrectable NVLink error": "a link between the devices has an uncorrectable error",
    "unknown error": "the driver reports an unknown error",
}
_CUDA_ERROR = re.compile(
    r"\bCUDA (driver )?error\b|CUBLAS_STATUS_|CUDNN_STATUS_|Triton Error|cudaError|CUDA_ERROR_"
)


def is_cuda_error(text: str) -> bool:
    """Return whether an exception's text is that of an error of CUDA or its libraries."""
    return _CUDA_ERROR.search(text) is not None


def check_context() -> str | None:
    """Return what has destroyed the context, as a clause; None if it is intact or there is none."""
    if STATE.dead_context is None:
        try:
            for ordinal in torch_cuda.contexts():
                torch_cuda.memory_info(ordinal)
        except RuntimeError as error:
            STATE.dead_context = fatal_cause(str(error))
    return STATE.dead_context


def fatal_cause(error: str) -> str | None:
    """Return what has happened, as a clause, if an error's text is that of one that destroys."""
    return next((cause for text, cause in FATAL.items() if text in error), None)


# --- no GPU --------------------------------------------------------------------------------------

#: The only reason that may change: CUDA may still be initialised.
NOT_IN_USE = "CUDA is not in use in this process"
_NO_DRIVER, _NO_GPU = "there is no NVIDIA driver", "this machine has no GPU"


def has_no_gpu() -> bool:
    """Return whether this machine has no GPU for torch, whatever is chosen or initialised."""
    return why_no_gpu() in (_NO_DRIVER, _NO_GPU)


def why_no_gpu() -> str:
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
        return _NO_DRIVER
    state = driver.state()
    if state.uuids == ():
        return "there is no GPU that CUDA can use"
    if state.initialized:
        return "CUDA has started in this process, but torch has used no GPU in it"
    return _NO_GPU if _machine_has_none() else NOT_IN_USE


@cache
def _machine_has_none() -> bool:
    from gpumagic.cuda import device_table  # with NVML, which loading the extension leaves alone

    return device_table.read().no_gpu is not None
