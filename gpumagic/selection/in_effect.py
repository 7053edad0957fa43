"""Find out whether a choice of GPUs is in effect, and if it is not, why and what helps.

By the driver's state and, where the CUDA runtime may have failed earlier, by how it starts in a
forked copy of this process.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from gpumagic.cuda import (
    dead_context,
    driver,
    init_failure,
    probe,
    start_errors,
    visible_devices,
)
from gpumagic.cuda.pytorch import torch_cuda
from gpumagic.cuda.this_process import STATE
from gpumagic.cuda.visible_devices import MASK, View
from gpumagic.errors import DeviceError
from gpumagic.render.units import spans
from gpumagic.results.devices import Device, DeviceTable
from gpumagic.results.selection import Selection, WayOut
from gpumagic.selection import environment
from gpumagic.selection.spec import Spec
from gpumagic.wording import plural


def verify(
    spec: Spec,
    before: Mapping[str, str | None],
    table: DeviceTable,
    *,
    options: str = "",
    prove: bool = True,
) -> Selection:
    """Return the effect of the variables just written; ``before`` are the earlier ones.

    Where CUDA has not started here, a child process starts it to ``prove`` the effect. ``options``
    are those that the same choice needs again after a restart, as they are typed.

    Raises:
        DeviceError: CUDA does not start with them, or shows the child other GPUs than are chosen.
    """
    now, state = environment.now(), driver.state()
    found = _effect(spec, now, state, table, prove=prove)
    is_late, seen = found.problem is not None, found.seen or ()
    broken = (f"GPU {device.index}: {device.error}" for device in seen if device.error)
    return Selection(
        requested=spec.text,
        environment=now,
        status="too-late" if is_late else "unchanged" if now == before else "applied",
        devices=seen,
        devices_known=found.seen is not None,
        no_gpu=table.no_gpu,
        cuda_initialized=state.initialized,
        notes=(*found.notes, *broken),
        problem=found.problem,
        where=found.where,
        ways_out=_ways_out(spec, options, seen) if is_late else (),
    )


class _Effect(NamedTuple):
    """The effect of the variables in this process."""

    #: The devices that it sees; None where these are not known.
    seen: tuple[Device, ...] | None
    #: Why the choice is not in effect, and where CUDA was initialised, as `Selection` has them.
    problem: str | None = None
    where: str | None = None
    notes: Sequence[str] = ()


def _effect(
    spec: Spec,
    variables: Mapping[str, str | None],
    state: driver.DriverState,
    table: DeviceTable,
    *,
    prove: bool,
) -> _Effect:
    """Return what the driver says where CUDA has started, else what a start of CUDA would show."""
    wanted = _wanted(variables, table)
    if state.initialized:
        listed = tuple(device.as_seen() for device in table.visible)
        seen = None if _is_unlisted(table) and state.uuids != () else listed
        if not _is_late(wanted, state, table):
            return _Effect(seen)
        return _Effect(seen, f"Too late for '{spec.text}': {_library()}", STATE.init_location())
    if state.initialized is None and table.no_gpu is None:
        problem = f"'{spec.text}' not verified: the CUDA driver does not report what it shows"
        return _Effect(_devices(wanted, table), problem)
    if init_failure.is_suspected(table):
        wrong = _query_runtime(spec, table, len(wanted.visible)) if wanted.visible else None
        if wrong is not None:
            return _Effect(() if STATE.init_failure.failed else None, wrong)
    elif prove and state.initialized is False:
        wanted, notes = _proven(spec, wanted, table)
        return _Effect(_devices(wanted, table), notes=notes)
    return _Effect(_devices(wanted, table))


def _wanted(variables: Mapping[str, str | None], table: DeviceTable) -> View:
    """Return what the variables show, as far as it is known."""
    if table.no_gpu is not None:
        return visible_devices.NOTHING
    if _is_unlisted(table) and variables[MASK] != visible_devices.HIDE_ALL:
        return View()
    return visible_devices.view(variables, table)


def _is_unlisted(table: DeviceTable) -> bool:
    """Return whether CUDA may see devices that NVML, which does not start, does not list."""
    return table.error is not None and table.no_gpu is None


def _proven(spec: Spec, wanted: View, table: DeviceTable) -> tuple[View, list[str]]:
    """Return what CUDA shows a child process with these variables, and notes.

    Raises:
        DeviceError: as for `verify`.
    """
    if wanted.visible == frozenset() or not driver.installed():
        return wanted, []
    uuids, message = probe.trial()
    if uuids is None:
        return wanted, [f"this is what the variables say: {message}"]
    actual = visible_devices.shown(uuids, table)
    problem = None
    if message is not None:
        known = start_errors.known(message)
        problem = f"CUDA does not start: {known or f'{message}; for the reason: %gpu doctor'}"
    elif actual.visible is not None and not wanted.fits(actual):
        which = f"GPU {spans(actual.visible)}" if actual.visible else "no GPU"
        problem = f"CUDA shows a process with this choice {which}; for the reason: %gpu doctor"
    if problem is not None and spec.kind in ("devices", "auto"):
        raise DeviceError(f"'{spec.text}' cannot be chosen: {problem}")
    return wanted if actual.visible is None else actual, [problem] if problem else []


def _devices(wanted: View, table: DeviceTable) -> tuple[Device, ...] | None:
    """Return the devices in the order in which CUDA will number them; None if not known."""
    if wanted.visible is None:
        return None
    if wanted.indexes is None:
        return tuple(replace(device, ordinal=None, visible=True) for device in table)
    by_index = {
        device.index: replace(device, visible=True, instance=wanted.instances.get(device.index))
        for device in table
    }
    return tuple(
        replace(by_index[index], ordinal=ordinal).as_seen()
        for ordinal, index in enumerate(wanted.indexes)
        if index is not None
    )


def _is_late(wanted: View, state: driver.DriverState, table: DeviceTable) -> bool:
    """Return whether the variables say other than what the initialised driver shows.

    Where it is not known what they say, they must be those with which it was initialised.
    """
    if wanted.visible is None:
        then = STATE.init_environment()
        return then is None or visible_devices.variables(then) != environment.now()
    if state.uuids is None:
        return True
    actual = visible_devices.shown(state.uuids, table)
    # With MIG the GPU may be the same, and the instance another.
    return not wanted.fits(actual) or wanted.instances != actual.instances


def _ways_out(spec: Spec, options: str, seen: Sequence[Device]) -> tuple[WayOut, ...]:
    """Return the commands that help where it is too late, without those that would be refused."""
    if start_errors.known(STATE.init_failure.reason) is not None:
        return ()
    again = f"%gpu {spec.text}{options} --restart"
    ways = [WayOut(again, "a fresh process in place; variables come back")]
    if seen and spec.kind == "off" and dead_context.check() is None:
        effect = "new code runs on the CPU; .cuda() raises an error"
        ways.append(WayOut(f"%gpu {spec.text} --soft", effect))
    return tuple(ways)


def _library() -> str:
    """Return a clause on the library that has initialised CUDA."""
    if torch_cuda.initialized():
        return "torch has initialised CUDA"
    if torch_cuda.loaded() is None:
        return "a library other than torch has initialised CUDA"
    return (
        "CUDA is already initialised, although torch.cuda.is_initialized() is False "
        "(torch.cuda.is_available(), a backward pass or another library may do that)"
    )


def _query_runtime(spec: Spec, table: DeviceTable, expected: int) -> str | None:
    """Return the problem if torch's CUDA runtime finds other than the ``expected`` devices.

    The runtime is queried in a copy of this process.
    """
    start = init_failure.query_start(table)
    if start.count == expected:
        return None
    if start.count is None:
        return (
            f"'{spec.text}' not verified: all GPUs were hidden while torch was loaded, or a start "
            "of CUDA failed, and a copy of this process returned nothing"
        )
    if start.count:
        number = f"{plural(expected, 'GPU')}, of which CUDA finds {start.count}"
        return f"'{spec.text}' shows {number}; for the reason: %gpu doctor"
    if (known := start_errors.known(start.reason)) is not None:
        return f"No choice helps: CUDA does not start: {known}"
    return f"Too late for '{spec.text}': {init_failure.cause()}"
