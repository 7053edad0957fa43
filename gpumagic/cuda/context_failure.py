"""Find out whether an error has destroyed this process's CUDA context: every later call fails.

A failed kernel (an assertion, an illegal address) and a lost device do that until the process ends.
The error's text alone does not show it: a worker process's error arrives as text too. So a context
is queried, by a call that waits for nothing, until it returns such an error.
"""

from __future__ import annotations

import re

from gpumagic.cuda import torch_cuda
from gpumagic.cuda.process_state import STATE

#: By the text of each error that leaves "the process in an inconsistent state" (``cudaError_t`` in
#: the CUDA runtime's documentation), what has happened.
_CAUSES = {
    "device-side assert triggered": "an assertion in a kernel failed, mostly an index out of range",
    "illegal memory access": "a kernel accessed an illegal address",
    "misaligned address": "a kernel accessed a misaligned address",
    "unspecified launch failure": "a kernel failed on the device",
    "illegal instruction": "a kernel ran an illegal instruction",
    "hardware stack error": "a kernel's stack was corrupted",
    "invalid program counter": "a kernel's program counter was invalid",
    "operation not supported on global/shared address space": "a kernel failed on the device",
    "launch timed out": "a kernel ran longer than the driver allows",
    "uncorrectable ECC error": "the device's memory has an uncorrectable error",
    "uncorrectable NVLink error": "a link between the devices has an uncorrectable error",
    "unknown error": "the device does not respond: it may be lost",
}
_CUDA_ERROR = re.compile(
    r"\bCUDA (driver )?error\b|CUBLAS_STATUS_|CUDNN_STATUS_|Triton Error|cudaError|CUDA_ERROR_"
)


def cause() -> str | None:
    """Return what has destroyed the context, as a clause, if that is known; queries nothing."""
    return STATE.context_failure


def note() -> str | None:
    """Return a line that says that the context is destroyed; None if that is not known."""
    dead = cause()
    if dead is None:
        return None
    return f"CUDA has failed in this process ({dead}): %gpu reset --restart starts it again."


def is_cuda_error(text: str) -> bool:
    """Return whether an exception's text is that of an error of CUDA or its libraries."""
    return _CUDA_ERROR.search(text) is not None


def check() -> str | None:
    """Return what has destroyed the context, as a clause; None if it is intact or there is none."""
    if STATE.context_failure is None:
        error = _context_error()
        STATE.context_failure = next((c for text, c in _CAUSES.items() if text in error), None)
    return STATE.context_failure


def _context_error() -> str:
    """Return the error that a query of this process's contexts raises; empty if none does."""
    try:
        for ordinal in torch_cuda.contexts():
            torch_cuda.memory_info(ordinal)
    except RuntimeError as error:
        return str(error)
    return ""
