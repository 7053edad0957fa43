"""Whether a start of CUDA has failed in this process, which CUDA's runtime then remembers.

Where every GPU is hidden, a backward pass on the CPU is enough to start CUDA, in vain. The driver
goes on saying that it is not initialised, so it cannot be asked; the runtime can, in a forked copy
of this process. That costs seconds: it is done where there is a suspicion, and once.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping

from gpumagic.cuda import driver, nvml_check, probe, torch_cuda, visible_devices
from gpumagic.results import DeviceTable

#: The part of a cell's time that a question at its end may take.
_LITTLE = 0.1

#: Something may have asked for CUDA when it could not start.
_suspected = False
#: Every device was hidden at a moment when torch was loaded, which would be the reason.
_hidden = False
#: How CUDA started in the copy last time, and the seconds that this took.
_start, _took = probe.Start(), 0.0
#: The variables under which the copy gave no answer: it is not asked again.
_unanswered: Mapping[str, str | None] | None = None


def suspect(*, hidden: bool) -> None:
    """From now on it may have failed; because all devices are, or were, ``hidden``, or else."""
    global _suspected, _hidden, _unanswered
    if not torch_cuda.built_with_cuda():
        return  # it is torch's start that can have failed, and torch that can be asked
    _suspected, _hidden, _unanswered = True, _hidden or hidden, None


def suspected() -> bool:
    """Whether it may have failed."""
    return _suspected


def cause() -> str:
    """Why it failed, for a sentence, if the copy said that it has."""
    if _hidden and _start.reason is None:
        return (
            "CUDA was asked for while all GPUs were hidden (a backward pass on the CPU does that), "
            "failed, and remembers that"
        )
    said = f" ({_start.reason})" if _start.reason else ""
    return f"CUDA has failed to start{said}, and remembers that"


def note_hiding(environment: Mapping[str, str | None], table: DeviceTable) -> None:
    """Suspect it if these variables, which hold or held, hide all devices from a loaded torch."""
    present = {name: value for name, value in environment.items() if value is not None}
    if torch_cuda.loaded() is not None and visible_devices.hides_all(present, table):
        suspect(hidden=True)


def ask() -> probe.Start:
    """How CUDA starts in a copy of this process. Only where the variables show a device."""
    global _suspected, _start, _took
    begun = time.monotonic()
    _start = probe.in_fork()
    _took = time.monotonic() - begun
    if _start.count is not None:
        driver.runtime_failed = _start.count == 0
        _suspected = driver.runtime_failed
        if driver.runtime_failed:
            nvml_check.withdraw()  # NVML does not know of it, and torch would say what NVML says
    return _start


def is_quick(seconds: float) -> bool:
    """Whether asking takes little, next to so many seconds; nobody knows before the first time."""
    return _took <= _LITTLE * seconds


def found(table: DeviceTable) -> bool:
    """Whether it has failed, as far as is known; asks only if it may have, and once."""
    global _unanswered
    if driver.runtime_failed or not _suspected:
        return driver.runtime_failed
    if table.cuda_initialized is not False or all(device.visible is False for device in table):
        return False
    now = {name: os.environ.get(name) for name in (visible_devices.MASK, visible_devices.ORDER)}
    if now != _unanswered and ask().count is None:
        _unanswered = now
    return driver.runtime_failed
