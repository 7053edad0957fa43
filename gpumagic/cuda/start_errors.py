"""Errors with which CUDA does not start, whatever is chosen: their causes, and what helps."""

from __future__ import annotations

from typing import NamedTuple


class StartError(NamedTuple):
    """An error with which CUDA does not start: a part of its text, what it means, what helps."""

    text: str
    cause: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.cause}. To do: {self.remedy}"


#: Errors that a restart of the notebook process does not change (CUDA runtime, ``cudaError_t``).
KNOWN = (
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


def known(text: str | None) -> StartError | None:
    """Return the error of `KNOWN` that a text has."""
    return next((each for each in KNOWN if text and each.text in text), None)
