"""Whether an initialisation of CUDA has failed in this process; CUDA's runtime does not try again.

Where every GPU is hidden, a backward pass on the CPU is enough to initialise CUDA, which fails. The
driver still answers that it is not initialised, so it cannot tell. The runtime can, in a forked
copy of this process. That takes seconds: it is asked only where there is a reason, and once. What
was found out is in `gpumagic.cuda.process_state`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping

from gpumagic.cuda import nvml_check, probe, torch_cuda, visible_devices
from gpumagic.cuda.process_state import STATE
from gpumagic.results import DeviceTable

#: The share of a cell's time that a question at its end may take.
_QUICK = 0.1


def suspect(*, hidden: bool) -> None:
    """Note that CUDA may have failed to initialise; ``hidden`` if all devices are, or were, hidden.

    Only for a torch with CUDA support: it is torch's initialisation that fails.
    """
    if torch_cuda.built_with_cuda():
        state = STATE.init_failure
        state.suspected, state.hidden = True, state.hidden or hidden
        state.unanswered = None


def suspected() -> bool:
    """Return whether CUDA may have failed to initialise and the runtime has not been asked."""
    return STATE.init_failure.suspected


def cause() -> str:
    """Return why CUDA failed to initialise, as a clause; for when `has_failed` is True."""
    state = STATE.init_failure
    if state.hidden and state.reason is None:
        return (
            "CUDA was asked for while all GPUs were hidden (a backward pass on the CPU does that), "
            "failed, and does not start again in this process"
        )
    reason = f" ({state.reason})" if state.reason else ""
    return f"CUDA has failed to start{reason}, and does not start again in this process"


def note_hiding(environment: Mapping[str, str | None], table: DeviceTable) -> None:
    """Call `suspect` if these variables, current or earlier ones, hide all devices from torch."""
    present = {name: value for name, value in environment.items() if value is not None}
    if torch_cuda.loaded() is not None and visible_devices.hides_all(present, table):
        suspect(hidden=True)


def ask() -> probe.Start:
    """Return how CUDA starts in a copy of this process.

    Only where the variables show a device.
    """
    state, begun = STATE.init_failure, time.monotonic()
    start = probe.in_fork()
    state.seconds, state.reason = time.monotonic() - begun, start.reason
    if start.count is not None:
        state.failed = state.suspected = start.count == 0
        if state.failed:
            nvml_check.withdraw()  # NVML does not know of it, and torch would say what NVML says
    return start


def is_quick(seconds: float) -> bool:
    """Return whether `ask` is quick compared with ``seconds``; True before it is first called."""
    return STATE.init_failure.seconds <= _QUICK * seconds


def has_failed(table: DeviceTable) -> bool:
    """Return whether CUDA has failed to initialise, as far as is known; asks if need be, once."""
    state = STATE.init_failure
    if state.failed or not state.suspected:
        return state.failed
    if table.cuda_initialized is not False or all(device.visible is False for device in table):
        return False
    now = {name: os.environ.get(name) for name in visible_devices.VARIABLES}
    if now != state.unanswered and ask().count is None:
        state.unanswered = now
    return state.failed
