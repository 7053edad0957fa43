"""Find out whether CUDA has failed to initialise in this process: its runtime does not try again.

Where every GPU is hidden, a backward pass on the CPU is enough to initialise CUDA, which fails. The
driver still reports that it is not initialised. Only the runtime reports the failure, in a forked
copy of this process. That takes seconds, so it is queried once, and only where a failure is likely.
The result is kept in `gpumagic.cuda.process_state`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping

from gpumagic.cuda import nvml_check, probe, torch_cuda, visible_devices
from gpumagic.cuda.process_state import STATE
from gpumagic.results import DeviceTable

#: The share of a cell's time that a query at its end may take.
_QUICK = 0.1


def suspect(*, hidden: bool) -> None:
    """Note that CUDA may have failed to initialise; ``hidden`` if all devices are, or were, hidden.

    Does nothing for a torch without CUDA support: it is torch's initialisation that fails.
    """
    if torch_cuda.built_with_cuda():
        state = STATE.init_failure
        state.suspected, state.hidden = True, state.hidden or hidden
        state.unanswered = None


def suspected() -> bool:
    """Return whether CUDA may have failed to initialise and the runtime was not queried."""
    return STATE.init_failure.suspected


def cause() -> str:
    """Return why CUDA failed to initialise, as a clause; for when `has_failed` is True."""
    state = STATE.init_failure
    if state.hidden and state.reason is None:
        return (
            "CUDA failed to start while all GPUs were hidden (a backward pass on the CPU starts "
            "it), and does not start again in this process"
        )
    reason = f" ({state.reason})" if state.reason else ""
    return f"CUDA has failed to start{reason}, and does not start again in this process"


def note_hiding(environment: Mapping[str, str | None], table: DeviceTable) -> None:
    """Call `suspect` if these variables, current or earlier ones, hide all devices from torch."""
    if torch_cuda.loaded() is not None and visible_devices.hides_all(environment, table):
        suspect(hidden=True)


def query() -> probe.Start:
    """Return how CUDA starts in a forked copy of this process.

    Only where the variables show a device.
    """
    state, begun = STATE.init_failure, time.monotonic()
    start = probe.in_fork()
    state.seconds, state.reason = time.monotonic() - begun, start.reason
    if start.count is not None:
        state.failed = state.suspected = start.count == 0
        if state.failed:
            nvml_check.withdraw()  # with it torch would return NVML's count of devices
    return start


def is_quick(seconds: float) -> bool:
    """Return whether `query` is quick compared with ``seconds``; True before its first call."""
    return STATE.init_failure.seconds <= _QUICK * seconds


def has_failed(table: DeviceTable) -> bool:
    """Return whether CUDA has failed to initialise, as far as known; queries it once if needed."""
    state = STATE.init_failure
    if state.failed or not state.suspected:
        return state.failed
    if table.cuda_initialized is not False or all(device.visible is False for device in table):
        return False
    now = {name: os.environ.get(name) for name in visible_devices.VARIABLES}
    if now != state.unanswered and query().count is None:
        state.unanswered = now
    return state.failed
