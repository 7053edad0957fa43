"""Choose which GPUs this process sees, and verify that the choice took effect.

A choice is made by ``CUDA_VISIBLE_DEVICES``, which the driver reads once; `verify` finds out
whether it still does. A choice that fails changes nothing.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from gpumagic.cuda import device_table, driver, visible_devices
from gpumagic.cuda.pytorch import torch_cuda
from gpumagic.cuda.this_process import STATE, AutoChoice
from gpumagic.cuda.visible_devices import MASK
from gpumagic.errors import DeviceError, GpuMagicWarning, SpecError
from gpumagic.render.units import spans
from gpumagic.results.devices import Device, DeviceTable
from gpumagic.results.selection import Selection
from gpumagic.selection import auto, choice_undo, claims, environment
from gpumagic.selection.auto import NotYetError, Wants
from gpumagic.selection.in_effect import verify
from gpumagic.selection.spec import Spec, as_text, parse, resolve, uuids_of
from gpumagic.wording import noun

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
    wants = Wants(min_free=min_free, idle=idle, wait=wait, claim=claim)
    selection = choose_devices(parse(as_text(spec)), wants)
    if selection.status == "too-late":
        warnings.warn(str(selection.problem), GpuMagicWarning, stacklevel=2)
    return selection


def choose_devices(spec: Spec, wants: Wants, progress: Progress | None = None) -> Selection:
    """Choose devices by a parsed spec; like `select`, without its warning.

    With ``wants.restart`` the choice is claimed also where it is too late, for the process that a
    restart will start in place of this one.

    Raises:
        SpecError, DeviceError: as for `select`.
    """
    started = time.monotonic()
    while True:
        table = device_table.read(usage=True)
        try:
            return _choose(spec, wants, table)
        except NotYetError as error:
            waited = time.monotonic() - started
            if not wants.restart and driver.is_initialized():
                why = f"{error}; not waited for, as CUDA has started here: add --restart"
                raise DeviceError(why if wants.wait else str(error)) from None
            if not wants.wait:
                raise DeviceError(f"{error}; --wait SECONDS waits for them") from None
            if waited >= wants.wait:
                raise
            if progress is not None:
                progress(waited, str(error))
        time.sleep(min(1.0, wants.wait - waited))  # Ctrl-C interrupts it


def _choose(spec: Spec, wants: Wants, table: DeviceTable) -> Selection:
    with choice_undo.undone_on_error() as before:
        change, notes = _change(spec, wants, table)
        if spec.kind == "reset" or not _changes_nothing(change, table):
            environment.write(change)
        chosen = verify(spec, before.environment, table, options=wants.options)
        if chosen.status == "too-late" and not wants.restart:
            # torch counts devices by the variables until it has initialised CUDA itself: only
            # then can they be another choice, for child processes.
            choice_undo.restore(before, variables=not torch_cuda.initialized())
            chosen = replace(chosen, environment=environment.now())
    return replace(chosen, notes=(*chosen.notes, *notes))


def _changes_nothing(change: Mapping[str, str | None], table: DeviceTable) -> bool:
    """Return whether the variables show the same devices now as after a change, in one order."""
    if table.no_gpu is not None:
        return True
    now = visible_devices.view(environment.now(), table)
    then = visible_devices.view(environment.changed_by(change), table)
    return table.error is None and now.indexes is not None and now == then


def choose_as_read(spec: Spec) -> Selection:
    """Write the variables that CUDA has read, which show what this process has anyway."""
    before = environment.now()
    environment.write(environment.read_by_cuda())
    return verify(spec, before, device_table.read())


def after_restart(spec: Spec, *, claim: bool = True) -> Selection:
    """Verify a choice whose variables, and whose claims, are those of the replaced process."""
    table = device_table.read()
    found = verify(spec, environment.now(), table, prove=False)
    late = found.status == "too-late"
    claim = claim and not late and spec.kind in ("devices", "auto", "same")
    notes = _claim(uuids_of(found.devices) if claim else (), table)
    status = found.status if late else "restarted"
    return replace(found, status=status, notes=(*found.notes, *notes))


def _change(
    spec: Spec, wants: Wants, table: DeviceTable
) -> tuple[Mapping[str, str | None], tuple[str, ...]]:
    """Claim the devices that a spec chooses; return the variables to write, and notes."""
    if spec.kind in ("off", "on", "reset"):
        claims.release()
        if spec.kind == "reset":
            return environment.at_process_start(), ()
        return {MASK: visible_devices.HIDE_ALL if spec.kind == "off" else None}, ()
    device_table.check(table)
    if spec.kind == "auto":
        chosen = _chosen_before(spec, wants, table) or _auto(spec, wants, table)
        STATE.choice.auto = AutoChoice(chosen, replace(wants, wait=0.0))
    else:
        chosen = resolve(spec, table)
    notes = _claim(chosen if wants.claim else (), table)
    return visible_devices.choice(chosen, table), notes


def _auto(spec: Spec, wants: Wants, table: DeviceTable) -> tuple[str, ...]:
    """Return what ``auto`` chooses anew."""
    usable = allowed(table)
    if spec.count > len(usable) and len(usable) < len(table.devices):
        given = spans([device.index for device in usable])
        raise SpecError(
            f"{spec.count} GPUs are requested, but this process was started with "
            f"{noun(len(usable), 'GPU')} {given} alone (CUDA_VISIBLE_DEVICES)"
        )
    if wants.restart:
        usable = [auto.without_own(device) for device in usable]
    if not wants.claim:
        return auto.pick(usable, spec.count, wants)
    uuids = uuids_of(auto.candidates(usable, spec.count))
    return claims.claim_best(lambda others: auto.pick(usable, spec.count, wants, others), uuids)


def _chosen_before(spec: Spec, wants: Wants, table: DeviceTable) -> tuple[str, ...] | None:
    """Return what ``auto`` chose before, where CUDA has started with it; None to choose anew.

    The same line, run again, has the same effect. Other wants must be met, without what this
    process itself uses.
    """
    last = STATE.choice.auto
    if last is None or len(last.uuids) != spec.count or not driver.is_initialized():
        return None
    by_uuid = {uuid: device for device in table for uuid in claims.all_uuids(device)}
    found = [by_uuid.get(uuid) for uuid in last.uuids]
    needed = auto.NO_WANTS if last.wants == replace(wants, wait=0.0) else wants
    fit = (d is not None and auto.refusal(auto.without_own(d), needed) is None for d in found)
    return last.uuids if all(fit) else None


def _claim(uuids: tuple[str, ...], table: DeviceTable) -> tuple[str, ...]:
    """Claim the chosen devices; return a note for each that others claim, or that this cannot."""
    if not uuids:
        claims.release()
        return ()
    others, failed = claims.others_of(uuids), claims.hold(uuids)
    names = {uuid: f"GPU {each.index}" for each in table for uuid in claims.all_uuids(each)}
    notes = []
    for uuid in uuids:
        if by := ", ".join(map(str, others[uuid])):
            notes.append(f"{names[uuid]} is claimed by {by}")
        if uuid in failed:
            where = f"{names[uuid]} is not claimed, so another notebook may choose it, too"
            notes.append(f"{where}: {failed[uuid]}")
    return tuple(notes)


def allowed(table: DeviceTable) -> Sequence[Device]:
    """Return the devices that ``auto`` may choose: those that were visible at the process's start.

    A scheduler that assigns some of a server's GPUs to a job does so by the variable; a kernel that
    was started with all of them hidden, or with none hidden, may use any.

    Raises:
        DeviceError: it is not known which those were.
    """
    start = STATE.started_with
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
