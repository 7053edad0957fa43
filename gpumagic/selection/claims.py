"""Claim GPUs in a registry that the users of a machine share, so that ``auto`` spreads them.

Claims only order the GPUs that fit: a claimed GPU is never refused, and NVML's data decides which
fit. Where no claim can be made, a `ClaimError` has the reason, and the choice is made without.

Published are pid, start time, pid namespace, the GPUs' UUIDs and, once it has been, whether the
memory is parked; the notebook's name and the time of its last cell only if the user has requested
it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from gpumagic.cuda import devices
from gpumagic.cuda.process_state import STATE
from gpumagic.results import Claim, Device
from gpumagic.selection.claim_entry import NOTEBOOK, ClaimError, Entry, TooManyFilesError
from gpumagic.selection.claim_folder import Folder, Found, open_folder, own_descriptors

#: Seconds to wait for the common lock, and how often a choice without it is repeated.
_PATIENCE, _ROUNDS = 1.0, 10
#: Seconds after which a claim without memory on its GPUs no longer counts.
_UNUSED = 1800.0

#: The claims of other processes, by UUID.
Claims = Mapping[str, Sequence[Found]]
#: Returns the UUIDs to choose, from others' claims.
Pick = Callable[[Claims], tuple[str, ...]]


class Registration:
    """The claim of this process: a file that it keeps locked."""

    def __init__(self) -> None:
        self.descriptor: int | None = None
        #: Whether a process that this one has replaced may have left its file open.
        self.may_inherit = True
        #: Published with the UUIDs; None for each that the user has not requested.
        self.notebook: str | None = None
        self.last_cell: float | None = None
        #: None before anything was parked.
        self.parked: bool | None = None

    def publish(self, folder: Folder, uuids: tuple[str, ...]) -> None:
        """Publish the UUIDs in place of the earlier ones; without UUIDs, withdraw the claim.

        Raises:
            ClaimError: they cannot be published; nothing is claimed.
        """
        if not uuids:
            self.withdraw(folder)
            return
        inherited = own_descriptors(folder.path, folder.me.name) if self.may_inherit else ()
        self.may_inherit = False
        me = folder.me
        entry = Entry(
            *(me.pid, me.start, me.namespace, me.boot, uuids),
            *(self.notebook, self.last_cell, self.parked),
        )
        try:
            folder.remove_orphans()
            descriptor = folder.publish(entry)
        except ClaimError:
            self.withdraw(folder)
            raise
        self._close()
        for each in inherited:  # from the process that this one has replaced
            os.close(each)
        self.descriptor = descriptor
        STATE.choice.claim = uuids

    def withdraw(self, folder: Folder | None = None) -> None:
        """Withdraw the claim and remove its file."""
        STATE.choice.claim = ()
        if self.descriptor is not None:
            with suppress(ClaimError):
                if folder is not None:
                    folder.remove()
                else:
                    with open_folder() as opened:
                        opened.remove()
        self._close()

    def restore(self, uuids: tuple[str, ...]) -> tuple[str, ...]:
        """Publish the claim of an earlier choice; return the UUIDs that could be claimed."""
        try:
            with open_folder() as folder:
                self.publish(folder, uuids)
        except ClaimError:
            self.withdraw()
        return STATE.choice.claim

    def refresh(self) -> None:
        """Publish the claim again, with its current fields."""
        self.restore(STATE.choice.claim)

    def is_published(self) -> bool:
        """Return whether the file still exists: programs that clean ``/tmp`` may remove it."""
        return self.descriptor is not None and os.fstat(self.descriptor).st_nlink > 0

    def end(self) -> None:
        """Remove the file at the end of the process."""
        with suppress(OSError):
            self.withdraw()

    def forget(self) -> None:
        """Close the file in a forked process: the claim belongs to its parent."""
        self._close()
        STATE.choice.claim = ()

    def _close(self) -> None:
        if self.descriptor is not None:
            with suppress(OSError):
                os.close(self.descriptor)
        self.descriptor = None


def registration() -> Registration:
    """Return this process's registration; the first call creates it."""
    found = STATE.registration
    if isinstance(found, Registration):
        return found
    import atexit

    new = Registration()
    atexit.register(new.end)
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=new.forget)
    STATE.registration = new
    return new


def claim(uuids: tuple[str, ...]) -> Claims:
    """Claim devices, also those that others claim; return others' claims.

    Raises:
        ClaimError: no claim can be made.
    """
    if not uuids and not STATE.choice.claim:
        return {}
    with open_folder() as folder:
        registration().publish(folder, uuids)
        try:
            return _by_uuid(_others(folder)) if uuids else {}
        except TooManyFilesError:
            registration().withdraw(folder)
            raise


def choose(
    pick: Pick, patience: float = _PATIENCE
) -> tuple[tuple[str, ...], Claims, ClaimError | None]:
    """Choose by others' claims and claim the choice, so that no two processes choose the same.

    Return the UUIDs, the claims of others, and why no claim was made, None if one was. An exception
    of ``pick`` passes.

    Every process holds a common lock while it chooses. Where it cannot acquire the lock within
    ``patience`` seconds, another process may choose the same GPUs at the same time: the one that
    has published its claim later chooses again.
    """
    others: Claims = {}
    chosen: tuple[str, ...] | None = None
    try:
        with open_folder() as folder:
            with folder.lock(patience):
                others = _by_uuid(_others(folder))
                chosen = pick(others)
                registration().publish(folder, chosen)
            return _chosen_again(folder, pick, chosen, others)
    except ClaimError as error:
        if isinstance(error, TooManyFilesError):
            registration().withdraw()
        return pick(others) if chosen is None else chosen, others, error


def _chosen_again(
    folder: Folder, pick: Pick, chosen: tuple[str, ...], others: Claims
) -> tuple[tuple[str, ...], Claims, ClaimError | None]:
    """Choose again while there is an earlier claim on the choice that was not read before it."""
    error = ClaimError("other processes claim the GPUs at the same time")
    for _ in range(_ROUNDS):
        seen, found = others, folder.read()
        me = next((each for each in found if _is_own(each, folder)), None)
        others = _by_uuid([each for each in found if not _is_own(each, folder)])
        if me is None or not _has_conflict(chosen, me, seen, others):
            return chosen, others, None
        chosen = pick(others)
        registration().publish(folder, chosen)
        time.sleep(0.01)
    return chosen, others, error


def is_claimed_before(uuids: Sequence[str], known: Mapping[str, Collection[int]]) -> bool:
    """Return whether another process has, or may have, claimed one of these GPUs before this one.

    Of two that choose at the same time, and do not hold the common lock, that one chooses again
    which has published its claim later. Within one tick of the file system's clock (4 ms) that is
    unknown: the other may have looked before this one's claim was there, so this one chooses again.
    ``known`` are the pids whose claims it was chosen by.
    """
    try:
        with open_folder() as folder:
            found = folder.read()
            me = next((each for each in found if _is_own(each, folder)), None)
            others = [each for each in found if not _is_own(each, folder)]
    except ClaimError:
        return False
    return me is not None and any(
        each.entry.pid not in known.get(uuid, ()) and each.published <= me.published
        for each in others
        for uuid in {*uuids}.intersection(each.entry.uuids)
    )


def _has_conflict(chosen: Sequence[str], me: Found, seen: Claims, now: Claims) -> bool:
    """Return whether another process has claimed a GPU before this one, and was not in ``seen``."""
    for uuid in chosen:
        known = {_key(each)[1:] for each in seen.get(uuid, ())}
        for each in now.get(uuid, ()):
            if _key(each)[1:] not in known and _key(each) < _key(me):
                return True
    return False


def _key(claim: Found) -> tuple[int, int, int, int]:
    return claim.published, claim.uid, claim.entry.pid, claim.entry.start


def _is_own(found: Found, folder: Folder) -> bool:
    me, entry = folder.me, found.entry
    return found.here and (found.uid, entry.pid, entry.start) == (me.uid, me.pid, me.start)


def _others(folder: Folder) -> list[Found]:
    return [found for found in folder.read() if not _is_own(found, folder)]


def _by_uuid(claims: Sequence[Found]) -> dict[str, list[Found]]:
    by_uuid: dict[str, list[Found]] = {}
    for each in claims:
        for uuid in each.entry.uuids:
            by_uuid.setdefault(uuid, []).append(each)
    return by_uuid


# --- claims of a device ----------------------------------------------------------------------


def count(device: Device, claims: Claims) -> int:
    """Return the number of others' claims on a device, without those that are long unused."""
    found = claims.get(device.instance or device.uuid or "", ())
    return sum(not _is_unused(each, device) for each in found)


def _is_unused(claim: Found, device: Device) -> bool:
    """Return whether a process has claimed a device for `_UNUSED` seconds, and has no memory on it.

    False where NVML's processes cannot be compared with the claim's.
    """
    known = claim.here and device.processes is not None and devices.in_first_pid_namespace()
    pids = [process.pid for process in device.processes or ()]
    return known and claim.age > _UNUSED and claim.entry.pid not in pids


def all_claims() -> list[Claim]:
    """Return all claims of the machine, this process's too.

    Raises:
        ClaimError: the registry cannot be read.
    """
    with open_folder() as folder:
        held = STATE.registration
        if isinstance(held, Registration) and held.descriptor and not held.is_published():
            held.publish(folder, STATE.choice.claim)
        return [
            replace(as_result(each), own=_is_own(each, folder), mine=each.uid == folder.me.uid)
            for each in folder.read()
        ]


def as_result(found: Found) -> Claim:
    """Return a claim as a result."""
    entry = found.entry
    idle = None
    if entry.last_cell is not None:
        idle = 0.0 if entry.last_cell == 0 else max(now() - entry.last_cell, 1.0)
    return Claim(
        uuids=entry.uuids,
        pid=entry.pid,
        user=_user(found.uid),
        notebook=entry.notebook,
        idle=idle,
        parked=entry.parked,
        mine=found.uid == os.geteuid(),
    )


def _user(uid: int) -> str | None:
    import pwd

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"


def with_claims(table: Sequence[Device], claims: Sequence[Claim]) -> tuple[Device, ...]:
    """Return the devices, each with the claims on it."""
    return tuple(
        replace(device, claims=tuple(c for c in claims if {*c.uuids} & uuids_of(device)))
        for device in table
    )


def uuids_of(device: Device) -> set[str]:
    """Return the UUIDs of a device and of its MIG instances."""
    return {uuid for uuid in (device.uuid, *(part.uuid for part in device.mig)) if uuid}


# --- what the user publishes -----------------------------------------------------------------


def publish_notebook(notebook: str | None, *, busy: bool) -> None:
    """Publish the notebook's name and whether a cell runs with the claim; None removes both."""
    held = registration()
    held.notebook = None if notebook is None else notebook.replace("/", "_")[:NOTEBOOK]
    held.last_cell = None if notebook is None else 0.0 if busy else now()
    if STATE.choice.claim:
        held.refresh()


def set_parked(parked: bool) -> None:
    """Publish with the claim, if there is one, whether the GPU memory is parked."""
    held = registration()
    held.parked = parked
    if STATE.choice.claim:
        held.refresh()


def now() -> float:
    """Return the seconds since the machine's start, the same for all its processes."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def undo() -> None:
    """Withdraw this process's claim."""
    if STATE.registration is not None:
        STATE.registration.withdraw()
