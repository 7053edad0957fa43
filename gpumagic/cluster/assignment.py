"""Assign devices to engines, from their device tables alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

from gpumagic.errors import DeviceError, SpecError
from gpumagic.results import Claim, ClusterTable, Device, EngineDevices
from gpumagic.selection.auto import NO_WANTS, Wants, refusal
from gpumagic.selection.spec import Spec, resolve
from gpumagic.system.text import noun


@dataclass(frozen=True)
class Unit:
    """A device, or a MIG instance of one, that can be assigned to an engine."""

    uuid: str
    index: int
    memory_free: int | None = None
    #: The UUID of the device, or of the MIG instance's device.
    device: str | None = None
    #: The claims of other processes than the engines that are chosen for.
    claims: tuple[Claim, ...] = ()

    @property
    def is_device(self) -> bool:
        """Whether it is a device, not a MIG instance."""
        return self.uuid == self.device

    def is_in(self, uuids: Collection[str]) -> bool:
        """Return whether ``uuids`` contain it, or its device."""
        return self.uuid in uuids or self.device in uuids


def units(devices: Iterable[Device], pids: Collection[int | None] = ()) -> list[Unit]:
    """Return what can be assigned, in nvidia-smi's order; unreadable devices are left out.

    ``pids`` are the engines', whose own claims do not count.
    """
    found = []
    for device in devices:
        claims = [claim for claim in device.claims if claim.pid not in pids]
        if device.mig:
            for part in device.mig:
                known = None not in (part.memory_total, part.memory_used)
                free = (part.memory_total or 0) - (part.memory_used or 0) if known else None
                by = tuple(claim for claim in claims if claim.instance in (None, part.uuid))
                found.append(Unit(part.uuid, device.index, free, device.uuid, by))
        elif device.uuid is not None and device.error is None:
            by = tuple(claims)
            found.append(Unit(device.uuid, device.index, device.memory_free, device.uuid, by))
    return found


def claimed_by_others(table: ClusterTable, specs: Mapping[int, str]) -> tuple[str, ...]:
    """Return a note for each assigned device that processes beside the engines claim."""
    notes = []
    for host, engines in table.hosts.items():
        chosen = {uuid for each in engines for uuid in specs.get(each.engine, "").split(",")}
        for unit in _units_of(engines):
            if unit.uuid in chosen and unit.claims:
                by = ", ".join(map(str, unit.claims))
                notes.append(f"GPU {unit.index} of {host} is claimed by {by}")
    return tuple(notes)


def named(table: ClusterTable, spec: Spec) -> dict[int, str]:
    """Return the UUIDs of the devices that a spec names, by engine; without those it does not fit.

    Such an engine says itself what is wrong.
    """
    found = {}
    for each in table:
        if each.table is not None:
            with suppress(SpecError, DeviceError):
                found[each.engine] = ",".join(resolve(spec, each.table))
    return found


def known_claims(table: ClusterTable) -> dict[str, list[int]]:
    """Return by UUID the pids whose claims `most_free` considers, and those of the engines.

    Each engine lists the claims at another time: what only another one's table has was not
    considered.
    """
    pids = {each.pid for each in table if each.pid is not None}
    known: dict[str, list[int]] = {}
    for engines in table.hosts.values():
        for unit in _units_of(engines):
            claiming = {claim.pid for claim in unit.claims if claim.pid is not None}
            known.setdefault(unit.uuid, sorted(pids | claiming))
    return known


def by_rank(
    table: ClusterTable,
    per_engine: int = 1,
    *,
    share: bool = False,
    taken: Collection[str] = frozenset(),
) -> dict[int, str]:
    """Assign ``per_engine`` devices to each engine, by its rank among its host's engines.

    Return their UUIDs by engine id. Each engine gets devices that it was given at its start, and
    that are not ``taken``. With ``share`` several engines may have the same device.

    Raises:
        DeviceError: a host has too few devices; nothing was changed.
    """
    chosen: dict[int, str] = {}
    for host, engines in table.hosts.items():
        given = _of_host(host, engines)
        if per_engine > 1:  # CUDA shows a process one MIG instance, and nothing beside it
            only_devices = {i: [u for u in mine if u.is_device] for i, mine in given.items()}
            if any(given.values()) and not any(only_devices.values()):
                raise DeviceError(
                    f"{host} has only MIG instances: an engine can have one, not more"
                )
            given = only_devices
        available = {i: [u for u in mine if not u.is_in(taken)] for i, mine in given.items()}
        assigned = (_shared if share else _exclusive)(available, per_engine)
        if assigned is None:
            raise DeviceError(_too_few(host, given, available, per_engine, share))
        for engine, mine in assigned.items():
            chosen[engine] = ",".join(mine)
    uuids = [uuid for spec in chosen.values() for uuid in spec.split(",")]
    if not share and len({*uuids}) < len(uuids):
        raise DeviceError(
            "hosts of different names have the same GPUs: are they containers on one machine? "
            "Pin the engines of one of them at a time, with -t"
        )
    return chosen


def _exclusive(available: Mapping[int, Sequence[Unit]], number: int) -> dict[int, list[str]] | None:
    """Return ``number`` units by engine, each for one engine; None where there are too few."""
    slots = [(engine, i) for engine in sorted(available) for i in range(number)]
    candidates = {slot: [unit.uuid for unit in available[slot[0]]] for slot in slots}
    owners: dict[str, tuple[int, int]] = {}
    if not all(_match(slot, candidates, owners) for slot in slots):
        return None
    return {
        engine: [unit.uuid for unit in mine if owners.get(unit.uuid, (None, 0))[0] == engine]
        for engine, mine in available.items()
    }


_Slot = TypeVar("_Slot", bound=Hashable)
_Candidate = TypeVar("_Candidate", bound=Hashable)


def _match(
    slot: _Slot,
    candidates: Mapping[_Slot, Sequence[_Candidate]],
    owners: dict[_Candidate, _Slot],
    tried: set[_Candidate] | None = None,
) -> bool:
    """Find a candidate for ``slot``: a free one, or one whose owner can have another."""
    tried = set() if tried is None else tried
    for candidate in candidates[slot]:
        if candidate not in owners:
            owners[candidate] = slot
            return True
    for candidate in candidates[slot]:
        if candidate not in tried:
            tried.add(candidate)
            if _match(owners[candidate], candidates, owners, tried):
                owners[candidate] = slot
                return True
    return False


def _shared(available: Mapping[int, Sequence[Unit]], number: int) -> dict[int, list[str]] | None:
    """Return each engine's least used ``number`` units; None where one has too few."""
    uses: Counter[str] = Counter()
    chosen = {}
    for engine in sorted(available):
        # Sorting keeps the order of those with equal use.
        mine = sorted((unit.uuid for unit in available[engine]), key=uses.__getitem__)[:number]
        if len(mine) < number:
            return None
        uses.update(mine)
        chosen[engine] = mine
    return chosen


def _too_few(
    host: str,
    given: Mapping[int, Sequence[Unit]],
    available: Mapping[int, Sequence[Unit]],
    per_engine: int,
    share: bool,
) -> str:
    """Return why a host's engines cannot have ``per_engine`` each, and what to type."""
    total = len({unit.uuid for mine in given.values() for unit in mine})
    number = len({unit.uuid for mine in available.values() for unit in mine})
    if number >= per_engine * (1 if share else len(available)):
        way = "" if share else "; --share lets engines share them"
        return (
            f"{host} has {_count(number, 'GPU')}, but an engine was given too few of them at its "
            f"start (CUDA_VISIBLE_DEVICES) to have {per_engine}{way}"
        )
    pinned = f" ({total - number} pinned to other engines)" if number < total else ""
    each = "" if per_engine == 1 else f" for {per_engine} each"
    has = f"{host} has {_count(total, 'GPU')}{pinned} and {_count(len(available), 'engine')}{each}"
    if number >= per_engine:
        fit = number // per_engine
        return f"{has}: --share lets engines share them, -t pins {fit} of the engines"
    if total >= per_engine:
        return f"{has}: --share lets engines share them"
    way = f"no engine can have {per_engine}" if total else "%gpu off --cluster runs all on CPUs"
    return f"{has}: {way}"


def most_free(
    table: ClusterTable, number: int, wants: Wants = NO_WANTS, *, claims: bool = True
) -> dict[int, str]:
    """Assign the ``number`` devices with the most free memory on all hosts, each to one engine.

    Return their UUIDs by engine id, without the other engines. A device goes to an engine that was
    given it at its start; it is skipped where all of those have a device already. With ``claims``
    those that other processes claim come last.

    Raises:
        DeviceError: there are fewer devices with an engine for each.
    """
    candidates: dict[str, list[int]] = {}  # by UUID alone: two host names may be one machine
    free: dict[str, tuple[int, int, str, int]] = {}
    for host, engines in table.hosts.items():
        for engine, mine in sorted(_of_host(host, engines, wants).items()):
            for unit in mine:
                candidates.setdefault(unit.uuid, []).append(engine)
                order = (len(unit.claims) * claims, -(unit.memory_free or 0), host, unit.index)
                free.setdefault(unit.uuid, order)
    owned: dict[int, str] = {}
    for uuid in sorted(free, key=free.__getitem__):
        if len(owned) < number:
            _match(uuid, candidates, owned)
    if len(owned) < number:
        raise DeviceError(
            f"auto {number}: the cluster has {_count(len(free), 'GPU')} and "
            f"{_count(sum(map(len, table.hosts.values())), 'engine')}, which is enough for "
            f"{len(owned)}"
        )
    return owned


def _of_host(
    host: str, engines: Sequence[EngineDevices], wants: Wants = NO_WANTS
) -> dict[int, list[Unit]]:
    """Return the devices of each engine of a host that it was given at its start, and that fit.

    Raises:
        DeviceError: the devices cannot be listed, or differ between the engines.
    """
    tables = {each.engine: each.table for each in engines if each.table is not None}
    first = next(iter(tables.values()))
    if first.error is not None:
        raise DeviceError(f"{host}: {first.error}")
    found = _units_of(engines)
    for table in tables.values():
        if {unit.uuid for unit in units(table)} != {unit.uuid for unit in found}:
            # Containers on one host may have its name, and different devices.
            raise DeviceError(
                f"the engines of {host} do not list the same GPUs: are they in different "
                "containers? Pin them one container at a time, with -t"
            )
    fitting = {device.index for device in first if refusal(device, wants) is None}
    fit = [unit for unit in found if unit.index in fitting]
    return {each.engine: [unit for unit in fit if unit.is_in(each.given)] for each in engines}


def _units_of(engines: Sequence[EngineDevices]) -> list[Unit]:
    """Return what can be assigned on a host, by the table of its first engine."""
    first = next(each.table for each in engines if each.table is not None)
    return units(first, {each.pid for each in engines})


def _count(number: int, what: str) -> str:
    return f"{number or 'no'} {noun(number, what)}"
