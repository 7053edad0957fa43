"""Whether an error has destroyed this process's CUDA context, after which every call on it fails.

A failed kernel (an assertion, an illegal address) and a lost device do that, for as long as the
process lasts. The error's text alone does not tell: a worker process's error arrives as text too.
So a context is asked, by a call that waits for nothing. Once the answer is known, CUDA is asked no
more.
"""

from __future__ import annotations

import re

from gpumagic.cuda import torch_cuda
from gpumagic.cuda.process_state import STATE

#: What the errors say that leave "the process in an inconsistent state": cudaError_t in the CUDA
#: runtime's documentation; and what happened.
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
    "unknown error": "the device does not answer: it may be lost",
}
_CUDA_ERROR = re.compile(
    r"\bCUDA (driver )?error\b|CUBLAS_STATUS_|CUDNN_STATUS_|Triton Error|cudaError|CUDA_ERROR_"
)


def cause() -> str | None:
    """Return what has destroyed the context, as a clause, if that is known; asks nothing."""
    return STATE.context_failure


def is_cuda_error(text: str) -> bool:
    """Return whether an exception's text is that of an error of CUDA or its libraries."""
    return _CUDA_ERROR.search(text) is not None


def check() -> str | None:
    """Return what has destroyed the context, as a clause; None if it is intact or there is none."""
    if STATE.context_failure is None:
        answer = _answer()
        known = (cause for text, cause in _CAUSES.items() if text in answer)
        STATE.context_failure = next(known, None)
    return STATE.context_failure


def _answer() -> str:
    """Return the error with which a context of this process answers; empty if there is none."""
    try:
        for ordinal in torch_cuda.contexts():
            torch_cuda.memory_info(ordinal)
    except RuntimeError as error:
        return str(error)
    return ""
