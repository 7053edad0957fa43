"""Choose which GPUs this process sees, and verify that the choice took effect.

A choice is made by ``CUDA_VISIBLE_DEVICES``, which the driver reads once; `verify` finds out
whether it still does. A choice that fails changes nothing.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from gpumagic.cuda import device_table, driver, failure, visible_devices
from gpumagic.cuda.process_state import STATE
from gpumagic.cuda.visible_devices import MASK
from gpumagic.errors import DeviceError, GpuMagicWarning
from gpumagic.results.devices import Device, DeviceTable
from gpumagic.results.selection import Selection
from gpumagic.selection import claims, environment
from gpumagic.selection.auto import NO_WANTS, Wants, candidates, freest, may_fit_later, pick
from gpumagic.selection.in_effect import verify
from gpumagic.selection.snapshot import undone_on_error
from gpumagic.selection.spec import Spec, as_text, parse, resolve, uuids_of

#: Called while waiting, with the seconds waited and the reason.
Progress = Callable[[float, str], None]


def select(
    spec: str | int | Sequence[int | str],
    *,
    min_free: int | None = None,
    idle: bool = False,
    wait: float = 0.0,
    claim: bool = True,
) -> Selection:
    """Choose which GPUs this process sees, and return what was verified afterwards.

    ``spec`` is ``off``, ``on``, ``reset``, ``auto [N]``, or indexes, ranges and UUIDs; numbers are
    always nvidia-smi's. An index may be an ``int``, and a list a ``list``. For ``auto``: at least
    ``min_free`` bytes free, ``idle`` for no other process and no use; waits at most ``wait``
    seconds.

    With ``claim`` the choice is claimed until this process ends or chooses again, and ``auto``
    prefers GPUs that no other process claims.

    A status of ``too-late`` comes with a `GpuMagicWarning`.

    Raises:
        SpecError: the spec is not valid on this machine; nothing was changed.
        DeviceError: the devices cannot be listed, or not enough are free; nothing was changed.

    Examples:
        >>> chosen = gpumagic.select("1,3")
        >>> chosen.status, [gpu.index for gpu in chosen.devices]
        ('applied', [1, 3])
        >>> gpumagic.select("reset").status
        'applied'

    .. versionadded:: 0.1.0
    """
    wants = Wants(min_free=min_free, idle=idle, wait=wait)
    selection = choose_devices(parse(as_text(spec)), wants, claim=claim)
    if selection.status == "too-late":
        warnings.warn(str(selection.problem), GpuMagicWarning, stacklevel=2)
    return selection


def choose_devices(
    spec: Spec,
    wants: Wants = NO_WANTS,
    *,
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
    table = device_table.read(processes=False)
    # Where CUDA has started here, a choice of what becomes free later is too late all the same.
    in_time = restart or not driver.is_initialized()
    if spec.kind == "auto" and wants.wait > 0 and in_time:
        device_table.check(table)
        table = _wait(spec, wants, progress)
    with undone_on_error() as before:
        can_wait = in_time and wants.wait == 0
        change, notes = _change(spec, wants, table, can_wait=can_wait, claim=claim)
        failure.note_mask(before.environment)
        environment.write(change)
        failure.note_mask(environment.now())
        chosen = verify(spec, before.environment, table, options=wants.options)
    if chosen.status == "too-late" and not restart:
        claims.hold(before.choice.claim)
    return replace(chosen, notes=(*chosen.notes, *notes))


def after_restart(spec: Spec, *, claim: bool = True) -> Selection:
    """Verify a choice whose variables, and whose claims, are those of the replaced process."""
    table = device_table.read(processes=False, usage=False)
    found = verify(spec, environment.now(), table, prove=False)
    named = visible_devices.named(visible_devices.variables(environment.now()), table) or ()
    chosen = uuids_of(named)
    notes: tuple[str, ...] = ()
    if spec.kind in ("devices", "auto", "same") and claim and found.status != "too-late":
        notes = _claim(chosen, claims.others_of(chosen), table)
    else:
        claims.release()
    found = replace(found, notes=(*found.notes, *notes))
    return found if found.status == "too-late" else replace(found, status="restarted")


def _change(
    spec: Spec, wants: Wants, table: DeviceTable, *, can_wait: bool, claim: bool
) -> tuple[Mapping[str, str | None], tuple[str, ...]]:
    """Claim the devices that a spec chooses; return the variables to write, and notes."""
    if spec.kind in ("off", "on", "reset"):
        claims.release()
        if spec.kind == "reset":
            return environment.started_with(), ()
        return {MASK: visible_devices.HIDE_ALL if spec.kind == "off" else None}, ()
    device_table.check(table)
    others: claims.Others = {}
    if spec.kind == "devices":
        chosen = resolve(spec, table)
        others = claims.others_of(chosen) if claim else {}
    else:
        usable, advice = allowed(table), "; --wait SECONDS waits for them" if can_wait else ""

        def best(others: claims.Others) -> tuple[str, ...]:
            return pick(usable, spec.count, wants, others, advice)

        if claim:
            found = uuids_of(candidates(usable, spec.count))
            chosen, others = claims.claim_best(best, found)
        else:
            chosen = best({})
    if not claim:
        claims.release()
    notes = _claim(chosen, others, table) if claim else ()
    return visible_devices.choice(chosen, table), notes


def _claim(uuids: tuple[str, ...], others: claims.Others, table: DeviceTable) -> tuple[str, ...]:
    """Claim the chosen devices; return a note for each that others claim, or that this cannot."""
    failed = claims.hold(uuids)
    notes = []
    for device in table:
        for uuid in {*claims.all_uuids(device)}.intersection(uuids):
            if by := ", ".join(map(str, others.get(uuid, ()))):
                notes.append(f"GPU {device.index} is claimed by {by}")
            if uuid in failed:
                notes.append(
                    f"GPU {device.index} is not claimed, so another notebook may choose it, too: "
                    f"{failed[uuid]}"
                )
    return tuple(notes)


def allowed(table: DeviceTable) -> Sequence[Device]:
    """Return the devices that ``auto`` may choose: those that were visible at the process's start.

    A scheduler that assigns some of a server's GPUs to a job does so by the variable; a kernel that
    was started with all of them hidden, or with none hidden, may use any.

    Raises:
        DeviceError: it is not known which those were.
    """
    start = visible_devices.variables(STATE.started_with)
    everything = [replace(device, instance=None) for device in table]
    if MASK not in start:
        return everything
    named = visible_devices.named(start, table)
    if named is None or (not named and start[MASK].startswith("MIG-")):
        raise DeviceError(
            f"the GPUs that this process was started with are not known ({MASK}={start[MASK]}); "
            "name a GPU, for example: %gpu 0"
        )
    return named or everything


def _wait(spec: Spec, wants: Wants, progress: Progress | None) -> DeviceTable:
    """Return the table as soon as enough devices fit, or cannot fit, or at the time limit.

    Ctrl-C interrupts it.
    """
    started, limit = time.monotonic(), wants.wait
    while True:
        table = device_table.read(processes=False)
        usable = candidates(allowed(table), spec.count)
        fitting = len(freest(usable, wants, {}))
        possible = sum(may_fit_later(device, wants) for device in usable)
        waited = time.monotonic() - started
        if fitting >= spec.count or possible < spec.count or waited >= limit:
            return table
        if progress is not None:
            progress(waited, f"{spec.count} asked for, {fitting} free enough")
        time.sleep(min(1.0, limit - waited))
