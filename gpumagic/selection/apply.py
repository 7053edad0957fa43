"""Choose which GPUs this process sees, and verify that the choice took effect.

A choice is made by ``CUDA_VISIBLE_DEVICES``, which the driver reads once. The result is what was
found afterwards: the driver's state and, where the CUDA runtime may have failed earlier, how it
starts in a forked copy of this process.
"""

from __future__ import annotations

import os
import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache

from gpumagic.cuda import devices, driver, failure, init_trace, torch_cuda, visible_devices
from gpumagic.cuda.failure import check_context
from gpumagic.cuda.process_state import STATE, Snapshot
from gpumagic.cuda.visible_devices import MASK, ORDER, VARIABLES, View, uuid_key
from gpumagic.errors import DeviceError, GpuMagicWarning
from gpumagic.results import Device, DeviceTable, Selection, Status, WayOut
from gpumagic.selection import claimed_choice, environment
from gpumagic.selection.spec import (
    NO_WANTS,
    Spec,
    Wants,
    as_text,
    candidates,
    freest,
    may_fit_later,
    parse,
    resolve,
)
from gpumagic.system.text import plural

#: Called while waiting, with the seconds waited and the reason.
Progress = Callable[[float, str], None]


def select(
    spec: str | int | Sequence[int | str],
    *,
    min_free: int | None = None,
    max_util: float | None = None,
    idle: bool = False,
    wait: float = 0.0,
    claim: bool = True,
) -> Selection:
    """Choose which GPUs this process sees, and return what was verified afterwards.

    ``spec`` is ``off``, ``on``, ``reset``, ``auto [N]``, or indexes, ranges and UUIDs; numbers are
    always nvidia-smi's. An index may be an ``int``, and a list a ``list``. For ``auto``: at least
    ``min_free`` bytes free, at most ``max_util`` percent utilised, ``idle`` for no other process;
    waits at most ``wait`` seconds.

    With ``claim`` the choice is claimed in the registry that the machine's users share, until this
    process ends or chooses again, and ``auto`` prefers GPUs that no other process claims.

    A status of ``too-late`` comes with a `GpuMagicWarning`.

    Raises:
        SpecError: the spec is not valid on this machine; nothing was changed.
        DeviceError: the devices cannot be listed, or not enough are free; nothing was changed.
    """
    wants = Wants(min_free=min_free, max_util=max_util, idle=idle)
    selection = choose(parse(as_text(spec)), wants, wait=wait, claim=claim)
    if selection.status == "too-late":
        warnings.warn(str(selection.problem), GpuMagicWarning, stacklevel=2)
    return selection


def choose(
    spec: Spec,
    wants: Wants = NO_WANTS,
    *,
    wait: float = 0.0,
    progress: Progress | None = None,
    claim: bool = True,
    restart: bool = False,
) -> Selection:
    """Choose devices by a parsed spec; like `select`, without its warning.

    With ``restart`` the choice is claimed also where it is too late, for the process that a
    restart will start in place of this one.

    Raises:
        SpecError, DeviceError: as for `select`.
    """
    table = devices.devices(processes=False)
    if spec.kind == "auto" and wait > 0:
        devices.check(table)
        table = _wait(spec, wants, wait, progress)
    before = STATE.snapshot()
    try:
        change, notes = _change(spec, wants, table, can_wait=wait == 0, claim=claim)
        chosen = _write(spec, change, table, before)
    except BaseException:
        STATE.restore(before)
        raise
    return claimed_choice.settle(chosen, before, notes, late=restart)


def apply_saved(spec: Spec, values: Mapping[str, str | None], *, claim: bool = True) -> Selection:
    """Write the variables that an earlier choice by ``spec`` has saved, and verify them."""
    change = {name: values.get(name) for name in VARIABLES}
    table, before = devices.devices(processes=False), STATE.snapshot()
    try:
        chosen = _write(spec, change, table, before)
        notes = claimed_choice.claim_named(spec, claimed_choice.named_uuids(change), table, claim)
    except BaseException:
        STATE.restore(before)
        raise
    return claimed_choice.settle(chosen, before, notes)


def after_restart(spec: Spec, *, claim: bool = True) -> Selection:
    """Verify a choice whose variables were written before the restart."""
    before, table = STATE.snapshot(), devices.devices(processes=False)
    found = _verify(spec, environment.now(), table)
    notes = claimed_choice.claim_named(
        spec, claimed_choice.named_uuids(environment.now()), table, claim
    )
    found = claimed_choice.settle(found, before, notes)
    return found if found.status == "too-late" else replace(found, status="restarted")


# --- what to write -----------------------------------------------------------------------------


def _change(
    spec: Spec, wants: Wants, table: DeviceTable, *, can_wait: bool, claim: bool
) -> tuple[Mapping[str, str | None], tuple[str, ...]]:
    """Claim the devices that a spec chooses; return the variables to write, and notes."""
    if spec.kind in ("off", "on", "reset"):
        notes = claimed_choice.claim_named(spec, (), table, claim)
        if spec.kind == "reset":
            return environment.started_with(), notes
        return {MASK: visible_devices.HIDE_ALL if spec.kind == "off" else None}, notes
    devices.check(table)
    if spec.kind == "auto":
        usable = allowed(table)
        if table.devices and not usable:
            raise DeviceError(
                f"the MIG instance that this kernel was started with is not known ({MASK}="
                f"{environment.started_with()[MASK]}); choose by UUID: %gpu MIG-…"
            )
        chosen, notes = claimed_choice.pick_and_claim(
            spec, wants, table, usable, can_wait=can_wait, claim=claim
        )
    else:
        chosen = resolve(spec, table)
        notes = claimed_choice.claim_named(spec, chosen, table, claim)
    return {MASK: ",".join(chosen)}, notes


def allowed(table: DeviceTable) -> Sequence[Device]:
    """Return the devices that ``auto`` may choose: those that were visible at the process's start.

    A scheduler that assigns some of a server's GPUs to a job does so by the variable; a kernel that
    was started with all of them hidden, or with none hidden, may use any. Empty where the variable
    names a MIG instance that NVML does not list.

    Raises:
        DeviceError: the variable has numbers in CUDA's own order, which the driver does not report.
    """
    start = visible_devices.variables(STATE.started_with)
    everything = [replace(device, instance=None) for device in table]
    if MASK not in start:
        return everything
    named = visible_devices.named(start, table)
    if start[MASK].startswith("MIG-"):
        return named or ()
    if named is None:
        visible = _view(start, table).visible
        if visible is None:
            raise DeviceError(
                f"the GPUs that this kernel was started with are not known: {MASK}={start[MASK]} "
                "counts in CUDA's own order, which the driver does not report; name a GPU, for "
                "example: %gpu 0"
            )
        named = [device for device in table if device.index in visible]
    return named or everything


def _view(variables: Mapping[str, str], table: DeviceTable) -> View:
    """Return what these variables show; where only the driver knows its order, by a child."""
    found = visible_devices.view(variables, table)
    if found.visible is not None:
        return found
    index_of = {uuid_key(device.uuid): device.index for device in table if device.uuid}
    try:
        listed = _listed(variables.get(MASK), variables.get(ORDER))
        indexes = tuple(index_of[uuid_key(device.uuid or "")] for device in listed or ())
    except KeyError:
        return found
    if listed is None:
        return found
    return View(indexes, frozenset(indexes))


@cache
def _listed(mask: str | None, order: str | None) -> tuple[driver.ListedDevice, ...] | None:
    """Return the devices that the driver shows with these variables; None if it does not start."""
    try:
        return driver.list_in_child({MASK: mask, ORDER: order})
    except DeviceError:
        return None


def _wait(spec: Spec, wants: Wants, limit: float, progress: Progress | None) -> DeviceTable:
    """Return the table as soon as enough devices fit, or cannot fit, or at the time limit.

    ``limit`` is in seconds. Ctrl-C interrupts it.
    """
    started = time.monotonic()
    while True:
        table = devices.devices(processes=False)
        usable = candidates(allowed(table), spec.count)
        fitting = len(freest(usable, wants))
        possible = sum(may_fit_later(device, wants) for device in usable)
        waited = time.monotonic() - started
        if fitting >= spec.count or possible < spec.count or waited >= limit:
            return table
        if progress is not None:
            progress(waited, f"{fitting} of {spec.count} GPUs are free enough")
        time.sleep(min(1.0, limit - waited))


# --- whether it took effect --------------------------------------------------------------------


def note_hiding() -> None:
    """Note whether all devices are, or were at the process's start, hidden from a loaded torch.

    Called when gpumagic loads: torch may have been used with the variables of the start.
    """
    variables = [environment.now(), environment.started_with()]
    masks = [each for each in variables if each[MASK] is not None]
    if masks and torch_cuda.loaded() is not None:
        table = devices.devices(processes=False)
        for each in masks:
            failure.note_hiding(each, table)


def _write(
    spec: Spec, change: Mapping[str, str | None], table: DeviceTable, before: Snapshot
) -> Selection:
    """Write the variables and verify the choice."""
    failure.note_hiding(before.environment, table)
    environment.write(change)
    failure.note_hiding(environment.now(), table)
    return _verify(spec, before.environment, table)


def _verify(spec: Spec, before: Mapping[str, str | None], table: DeviceTable) -> Selection:
    """Return the effect of the variables just written; ``before`` are the earlier ones."""
    now = environment.now()
    wanted = _view(visible_devices.variables(now), table)
    if table.cuda_missing:
        wanted = View((), frozenset())
    state = driver.state()
    notes: list[str] = []
    status: Status = "unchanged" if now == before else "applied"
    problem: str | None = None
    where: str | None = None
    known = wanted.visible is not None
    seen = _devices(wanted, table) if known else ()
    if state.initialized:
        seen, known = tuple(device.as_seen() for device in table.visible), True
        if _shows_others(wanted, seen, state, table):
            location = init_trace.location()
            problem = f"Too late for '{spec.text}': {_library()}"
            where = None if location is None else str(location)
    elif state.initialized is None:
        problem = f"'{spec.text}' not verified: the CUDA driver does not report what it shows"
    elif failure.suspected() and wanted.visible:
        problem, count = _query_runtime(spec, len(wanted.visible))
        if problem is not None:
            seen, known = (), count == 0
    notes += [f"GPU {device.index}: {device.error}" for device in seen if device.error]
    if table.cuda_missing and spec.kind != "off":
        notes.append(driver.MISSING)
    ways_out = _ways_out(spec, wanted, seen)
    if os.name != "nt" and any(driver.c_environment(name) != now[name] for name in VARIABLES):
        problem = f"os.environ was replaced, so {MASK} does not reach the driver"
        where, ways_out = None, ()
    if problem is not None:
        status = "too-late"
        value = f"{MASK} is not set" if now[MASK] is None else f"{MASK}={now[MASK]}"
        notes.append(f"processes started from here see the choice: {value}")
    return Selection(
        requested=spec.text,
        environment=now,
        status=status,
        devices=seen,
        devices_known=known,
        cuda_initialized=state.initialized,
        message=None if problem is None else _message(problem, where, ways_out),
        notes=tuple(notes),
        problem=problem,
        where=where,
        ways_out=() if problem is None else ways_out,
    )


def _devices(wanted: View, table: DeviceTable) -> tuple[Device, ...]:
    """Return the devices in the order in which CUDA will number them when it is initialised."""
    by_index = {device.index: device for device in table}
    if wanted.indexes is None:
        return tuple(replace(device, ordinal=None, visible=True) for device in table)
    return tuple(
        replace(
            by_index[index], ordinal=ordinal, visible=True, instance=wanted.instances.get(index)
        ).as_seen()
        for ordinal, index in enumerate(wanted.indexes)
    )


def _shows_others(
    wanted: View,
    seen: Sequence[Device],
    state: driver.DriverState,
    table: DeviceTable,
) -> bool:
    """Return whether the initialised driver shows other devices than those wanted."""
    if state.uuids is None or (state.uuids and not seen):
        return True  # it does not report its devices, or shows one that NVML does not list
    if wanted.indexes is None:  # the order is not known: compare the sets
        return wanted.visible != frozenset(device.index for device in seen)
    if any(device.mig for device in table):  # the GPU may be the same, and the instance another
        uuids = {device.index: device.uuid or "" for device in table} | dict(wanted.instances)
        return [*map(uuid_key, state.uuids)] != [uuid_key(uuids[i]) for i in wanted.indexes]
    return list(wanted.indexes) != [device.index for device in seen]


def _ways_out(spec: Spec, wanted: View, seen: Sequence[Device]) -> tuple[WayOut, ...]:
    """Return the commands that help where it is too late, without those that would be refused."""
    ways = []
    if os.name != "nt":  # Windows cannot replace a running process
        effect = "a fresh kernel in place of this one; --keep NAME … keeps variables"
        ways.append(WayOut(f"%gpu {spec.text} --restart", effect))
    visible = {device.index for device in seen}
    is_known = wanted.visible is not None and wanted.visible <= visible
    is_dead = check_context() is not None
    if seen and is_known and not is_dead and spec.kind not in ("on", "reset"):
        effect = "nothing is lost: new work for the other GPUs is refused in this process"
        if spec.kind == "off":
            effect = "nothing is lost: new work goes to the CPU, or is refused"
        ways.append(WayOut(f"%gpu {spec.text} --soft", effect))
    return tuple(ways)


_BY_HAND = "restart the kernel and choose before anything uses CUDA"


def _message(problem: str, where: str | None, ways_out: Sequence[WayOut]) -> str:
    """Return problem, place and commands in one line, for the result's ``message``."""
    ways = ", or ".join([*(f"{way.command} ({way.effect})" for way in ways_out), _BY_HAND])
    return f"{problem}{'' if where is None else f' ({where})'}. To change that: {ways}"


_OTHER_LIBRARIES = ("cupy", "jax", "tensorflow", "numba", "pycuda")


def _library() -> str:
    """Return a clause on the library that has initialised CUDA."""
    if torch_cuda.initialized():
        return "torch has initialised CUDA"
    others = [name for name in _OTHER_LIBRARIES if name in sys.modules]
    if torch_cuda.loaded() is None:
        by = f" (perhaps {' or '.join(others)})" if others else ""
        return f"a library other than torch has initialised CUDA{by}"
    return (
        "CUDA is already initialised, although torch.cuda.is_initialized() is False "
        f"({', '.join(['torch.cuda.is_available()', 'a backward pass', *others])} may do that)"
    )


def _query_runtime(spec: Spec, expected: int) -> tuple[str | None, int | None]:
    """Return the problem, if any, and how many devices torch's CUDA runtime finds.

    The runtime is queried in a copy of this process.
    """
    start = failure.query_start()
    if start.count == expected:
        return None, expected
    if start.count is None:
        problem = (
            f"'{spec.text}' not verified: all GPUs were hidden while torch was loaded, or a start "
            "of CUDA failed, and a copy of this process returned nothing"
        )
    elif start.count:
        number = f"{plural(expected, 'GPU')}, of which CUDA finds {start.count}"
        problem = f"'{spec.text}' shows {number}; for the reason: %gpu doctor"
    else:
        problem = f"Too late for '{spec.text}': {failure.start_cause()}"
    return problem, start.count
