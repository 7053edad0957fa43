"""Claim the chosen devices: those that the user names, or that ``auto`` picks by others' claims.

Where no claim can be made, a note says why, and the choice is made without.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from gpumagic.cuda.process_state import STATE, Snapshot
from gpumagic.cuda.visible_devices import MASK
from gpumagic.results import Device, DeviceTable, Selection
from gpumagic.selection import claims
from gpumagic.selection.claim_entry import ClaimError
from gpumagic.selection.spec import Spec, Wants, pick


def named_uuids(variables: Mapping[str, str | None]) -> tuple[str, ...]:
    """Return the UUIDs in variables that a choice has written."""
    mask = variables.get(MASK) or ""
    return tuple(mask.split(",")) if mask.startswith(("GPU-", "MIG-")) else ()


def claim_named(
    spec: Spec, uuids: tuple[str, ...], table: DeviceTable, claim: bool
) -> tuple[str, ...]:
    """Claim the devices that the user named, in place of earlier ones, and return notes."""
    if spec.kind not in ("devices", "auto") or not claim:
        uuids = ()
    try:
        return _notes(uuids, table, claims.claim(uuids))
    except ClaimError as error:
        return (f"not claimed: {error}",)


def _notes(uuids: Sequence[str], table: DeviceTable, others: claims.Claims) -> tuple[str, ...]:
    """Return a note for each chosen device that other processes claim."""
    notes = []
    for uuid in uuids:
        by = ", ".join(str(claims.as_result(each)) for each in others.get(uuid, ()))
        if by:
            index = next((d.index for d in table if uuid in claims.uuids_of(d)), None)
            notes.append(f"GPU {index} is claimed by {by}")
    return tuple(notes)


def settle(
    chosen: Selection, before: Snapshot, notes: tuple[str, ...], *, late: bool = False
) -> Selection:
    """Return the selection with the notes on its claim.

    Where the choice is too late the earlier claim is restored, unless ``late`` claims are kept.
    """
    if chosen.status == "too-late" and not late and STATE.registration is not None:
        STATE.choice.claim = STATE.registration.restore(before.choice.claim)
    return replace(chosen, notes=(*chosen.notes, *notes))


def pick_and_claim(
    spec: Spec,
    wants: Wants,
    table: DeviceTable,
    usable: Sequence[Device],
    *,
    can_wait: bool,
    claim: bool,
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Choose and claim devices for ``auto``; return their UUIDs and notes.

    Raises:
        SpecError, DeviceError: as for `gpumagic.selection.spec.pick`.
    """

    def choice(others: claims.Claims) -> tuple[str, ...]:
        def count(device: Device) -> int:
            return claims.count(device, others)

        return pick(usable, spec.count, wants, can_wait, count)

    if not claim:
        return choice({}), claim_named(spec, (), table, claim)
    chosen, others, error = claims.choose(choice)
    notes = _notes(chosen, table, others)
    return chosen, notes if error is None else (*notes, f"not claimed: {error}")
