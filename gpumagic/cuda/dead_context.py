"""Find out whether an error has destroyed this process's CUDA context.

A failed kernel (an assertion, an illegal address) and a lost device make every later call fail
until the process ends. The error's text alone does not show it, since a worker process's error
arrives as text too: a context is queried, by a call that waits for nothing. What is found out is
kept in `gpumagic.cuda.this_process`.
"""

from __future__ import annotations

import re

from gpumagic.cuda.pytorch import torch_cuda
from gpumagic.cuda.this_process import STATE

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


def check() -> str | None:
    """Return that the context is destroyed, and by what, as a clause; None if that is not known."""
    if STATE.dead_context is None:
        try:
            for ordinal in torch_cuda.contexts():
                torch_cuda.memory_info(ordinal)
        except RuntimeError as error:
            if (cause := fatal_cause(str(error))) is not None:
                STATE.dead_context = f"CUDA has failed in this process ({cause})"
    return STATE.dead_context


def note() -> str | None:
    """Return a line for where the context is known to be destroyed, else None."""
    dead = STATE.dead_context
    return None if dead is None else f"{dead}: %gpu restart starts it again."


def fatal_cause(error: str) -> str | None:
    """Return what has happened, as a clause, if an error's text is that of one that destroys."""
    return next((cause for text, cause in FATAL.items() if text in error), None)
