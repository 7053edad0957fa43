"""Find out whether CUDA failed to start in this process, and say why: it does not start again.

Where every GPU is hidden, a backward pass on the CPU is enough to initialise CUDA, which fails, and
the runtime does not try again. The driver still reports that it is not initialised: only the
runtime knows of the failure, and a forked copy of this process has the same runtime. So such a copy
starts CUDA: once, and only where a failure is likely. What is found out is kept in
`gpumagic.cuda.this_process`.
"""

from __future__ import annotations

from collections.abc import Mapping

from gpumagic.cuda import driver, nvml_check, probe, start_errors, visible_devices
from gpumagic.cuda.pytorch import torch_cuda
from gpumagic.cuda.this_process import STATE
from gpumagic.results.devices import DeviceTable


def suspect() -> None:
    """Note that CUDA may have failed to initialise.

    Does nothing for a torch without CUDA support: it is torch's initialisation that fails.
    """
    if torch_cuda.built_with_cuda():
        STATE.init_failure.suspected = True


def note_mask(environment: Mapping[str, str | None]) -> None:
    """Note that torch was loaded while these variables were set; reads no device."""
    mask = environment.get(visible_devices.MASK)
    if mask is not None and torch_cuda.built_with_cuda():
        STATE.init_failure.masks.add(mask)


def is_suspected(table: DeviceTable) -> bool:
    """Return whether CUDA may have failed to initialise and the runtime was not queried.

    It may have while all devices of the table were hidden from torch.
    """
    return STATE.init_failure.suspected or _were_hidden(table)


def _were_hidden(table: DeviceTable) -> bool:
    masks = ({visible_devices.MASK: mask} for mask in STATE.init_failure.masks)
    return any(visible_devices.hides_all(each, table) for each in masks)


def query_start(table: DeviceTable, *, hidden: bool = False) -> probe.Start:
    """Return how CUDA starts in a forked copy of this process, and note whether it failed here.

    ``hidden`` is for variables that hide all devices. The copy starts without these variables: so
    it finds no device only where an earlier start in this process has failed.
    """
    state, start = STATE.init_failure, probe.in_fork(shown=hidden)
    state.hidden = state.hidden or hidden or _were_hidden(table)
    state.reason = start.reason
    if start.count is not None:
        state.masks.clear()  # what they have caused is known now
        state.failed = start.count == 0
        # As long as all devices are hidden, the next start in this process would fail.
        state.suspected = state.failed or hidden
        if state.failed:
            # With it torch would return NVML's count of devices.
            nvml_check.withdraw()
    return start


def has_failed(table: DeviceTable) -> bool:
    """Return whether CUDA has failed to initialise, as far as known.

    A copy of this process is asked where that is likely: while all devices are hidden each time.
    """
    state = STATE.init_failure
    hidden = all(device.visible is False for device in table)
    if state.failed or (hidden and driver.loaded_library() is None):  # nothing has started CUDA
        return state.failed
    likely = hidden or is_suspected(table)
    if likely and table.cuda_initialized is False and table.devices:
        query_start(table, hidden=hidden)
    return state.failed


def remedy() -> str:
    """Return what helps where CUDA has failed to initialise."""
    known = start_errors.known(STATE.init_failure.reason)
    return "%gpu on --restart" if known is None else known.remedy


def cause() -> str:
    """Return why CUDA failed to initialise, as a clause; for when `has_failed` is True."""
    state = STATE.init_failure
    if (known := start_errors.known(state.reason)) is not None:
        return f"CUDA does not start: {known.cause}"
    if state.hidden and state.reason is None:
        return (
            "CUDA failed to start while all GPUs were hidden (device 'cuda' starts it, or a "
            "backward pass on the CPU), and does not start again in this process"
        )
    reason = f" ({state.reason})" if state.reason else ""
    return f"CUDA has failed to start{reason}, and does not start again in this process"
