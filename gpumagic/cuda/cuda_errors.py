"""What to say of a CUDA that has failed in this process: why it has, and what helps.

Whether it has failed is found out by `init_failure` and `dead_context`.
"""

from __future__ import annotations

from typing import NamedTuple

from gpumagic.cuda.this_process import STATE


class StartError(NamedTuple):
    """An error with which CUDA does not start: a part of its text, what it means, what helps."""

    text: str
    cause: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.cause}. To do: {self.remedy}"


#: Errors that a restart of the notebook process does not change (CUDA runtime, ``cudaError_t``).
START_ERRORS = (
    StartError(
        "system not yet initialized",
        "NVIDIA's Fabric Manager, which machines with NVSwitch need, does not run, or is of "
        "another version than the driver (error 802)",
        "start nvidia-fabricmanager of exactly the driver's version on the host, or ask whoever "
        "runs it",
    ),
    StartError(
        "unsupported display driver",
        "libcuda and the driver's kernel module are of different versions (error 803)",
        "after an update of the driver, reboot; else take the folder with another libcuda (often "
        "compat) out of LD_LIBRARY_PATH",
    ),
    StartError(
        "forward compatibility was attempted",
        "a libcuda for newer CUDA is in use, which only data centre GPUs run (error 804)",
        "install a newer driver on the host, use an older image, or take its folder compat out of "
        "LD_LIBRARY_PATH",
    ),
    StartError(
        "MPS client failed to connect",
        "CUDA is to use NVIDIA's MPS, whose daemon does not answer (error 805)",
        "start nvidia-cuda-mps-control -d as the same user, or start the notebook process without "
        "CUDA_MPS_PIPE_DIRECTORY",
    ),
    StartError(
        "CUDA unknown error",
        "the driver could not be started (error 999); CUDA_VISIBLE_DEVICES is seldom the reason",
        "in a container: create it anew, as the host has taken away its devices; after the machine "
        "has slept: sudo rmmod nvidia_uvm && sudo modprobe nvidia_uvm; else reboot",
    ),
)


def start_error(text: str | None) -> StartError | None:
    """Return the error of `START_ERRORS` that a text has."""
    return next((each for each in START_ERRORS if text and each.text in text), None)


def start_remedy() -> str:
    """Return what helps where CUDA has failed to initialise."""
    known = start_error(STATE.init_failure.reason)
    return "%gpu on --restart" if known is None else known.remedy


def start_cause() -> str:
    """Return why CUDA failed to initialise, as a clause; for when `has_failed` is True."""
    state = STATE.init_failure
    if (known := start_error(state.reason)) is not None:
        return f"CUDA does not start: {known.cause}"
    if state.hidden and state.reason is None:
        return (
            "CUDA failed to start while all GPUs were hidden (device 'cuda' starts it, or a "
            "backward pass on the CPU), and does not start again in this process"
        )
    reason = f" ({state.reason})" if state.reason else ""
    return f"CUDA has failed to start{reason}, and does not start again in this process"


def dead_context_note() -> str | None:
    """Return a line that says that the context is destroyed; None if that is not known."""
    if STATE.dead_context is None:
        return None
    return f"CUDA has failed in this process ({STATE.dead_context}): %gpu restart starts it again."
