"""Which engine gets which devices: pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from gpumagic.errors import DeviceError
from gpumagic.results import ClusterTable, Device, EngineDevices
from gpumagic.selection.spec import Wants, refusal
from gpumagic.system.text import noun

_NO_WANTS = Wants()


@dataclass(frozen=True)
class Unit:
    """What can be given to an engine: a device, or a MIG instance of one."""

    uuid: str
    index: int
    memory_free: int | None = None
    #: The UUID of the device that it is, or is a part of.
    device: str | None = None

    @property
    def is_whole(self) -> bool:
        """Whether it is no part of a device."""
        return self.uuid == self.device

    def among(self, uuids: Collection[str]) -> bool:
        """Whether ``uuids`` name it, or the device that it is a part of."""
        return self.uuid in uuids or self.device in uuids


def units(devices: Iterable[Device]) -> list[Unit]:
    """What there is to give, in nvidia-smi's order; devices that cannot be read are left out."""
    found = []
    for device in devices:
        if device.mig:
            for part in device.mig:
                known = None not in (part.memory_total, part.memory_used)
                free = (part.memory_total or 0) - (part.memory_used or 0) if known else None
                found.append(Unit(part.uuid, device.index, free, device.uuid))
        elif device.uuid is not None and device.error is None:
            found.append(Unit(device.uuid, device.index, device.memory_free, device.uuid))
    return found


def by_rank(
    table: ClusterTable,
    per_engine: int = 1,
    *,
    share: bool = False,
    taken: Collection[str] = frozenset(),
) -> dict[int, str]:
    """By engine id, the UUIDs of its ``per_engine`` devices: by its rank among its host's engines.

    Each gets what it was given at its start and nobody has ``taken``. With ``share`` engines take
    the devices in turn, so that several may have the same.

    Raises:
        DeviceError: a host has too few devices; nothing was changed.
    """
    chosen: dict[int, str] = {}
    for host, engines in table.hosts.items():
        given = _of_host(host, engines)
        if per_engine > 1:  # CUDA shows a process one MIG instance, and nothing beside it
            whole = {i: [u for u in mine if u.is_whole] for i, mine in given.items()}
            if any(given.values()) and not any(whole.values()):
                raise DeviceError(
                    f"{host} has only MIG instances: an engine can have one, not more"
                )
            given = whole
        there = {i: [u for u in mine if not u.among(taken)] for i, mine in given.items()}
        mine = _in_turn(there, per_engine) if share else _own(there, per_engine)
        if mine is None:
            raise DeviceError(_too_few(host, given, there, per_engine, share))
        for engine, its in mine.items():
            chosen[engine] = ",".join(its)
    uuids = [uuid for spec in chosen.values() for uuid in spec.split(",")]
    if not share and len({*uuids}) < len(uuids):
        raise DeviceError(
            "hosts of different names have the same GPUs: are they containers on one machine? "
            "Pin the engines of one of them at a time, with -t"
        )
    return chosen


def _own(there: Mapping[int, Sequence[Unit]], number: int) -> dict[int, list[str]] | None:
    """By engine, so many units that are nobody else's; None where there are not enough."""
    slots = [(engine, i) for engine in sorted(there) for i in range(number)]
    candidates = {slot: [unit.uuid for unit in there[slot[0]]] for slot in slots}
    owners: dict[str, tuple[int, int]] = {}
    if not all(_match(slot, candidates, owners) for slot in slots):
        return None
    return {
        engine: [unit.uuid for unit in mine if owners.get(unit.uuid, (None, 0))[0] == engine]
        for engine, mine in there.items()
    }


_Slot = TypeVar("_Slot", bound=Hashable)
_Thing = TypeVar("_Thing", bound=Hashable)


def _match(
    slot: _Slot,
    candidates: Mapping[_Slot, Sequence[_Thing]],
    owners: dict[_Thing, _Slot],
    tried: set[_Thing] | None = None,
) -> bool:
    """Give ``slot`` one of its candidates: a free one, or one whose owner can have another."""
    tried = set() if tried is None else tried
    for thing in candidates[slot]:
        if thing not in owners:
            owners[thing] = slot
            return True
    for thing in candidates[slot]:
        if thing not in tried:
            tried.add(thing)
            if _match(owners[thing], candidates, owners, tried):
                owners[thing] = slot
                return True
    return False


def _in_turn(there: Mapping[int, Sequence[Unit]], number: int) -> dict[int, list[str]] | None:
    """By engine, those of its units that the fewest have; None where one has not so many."""
    uses: Counter[str] = Counter()
    chosen = {}
    for engine in sorted(there):
        # Sorting keeps the order of those that are used alike.
        mine = sorted((unit.uuid for unit in there[engine]), key=uses.__getitem__)[:number]
        if len(mine) < number:
            return None
        uses.update(mine)
        chosen[engine] = mine
    return chosen


def _too_few(
    host: str,
    given: Mapping[int, Sequence[Unit]],
    there: Mapping[int, Sequence[Unit]],
    per_engine: int,
    share: bool,
) -> str:
    """Why a host's engines cannot have ``per_engine`` each, and what can be done."""
    every = {unit.uuid for mine in given.values() for unit in mine}
    number = len({unit.uuid for mine in there.values() for unit in mine})
    if number >= per_engine * (1 if share else len(there)):
        way = "" if share else "; --share lets engines share them"
        return (
            f"{host} has {_count(number, 'GPU')}, but an engine was given too few of them at its "
            f"start (CUDA_VISIBLE_DEVICES) to have {per_engine}{way}"
        )
    pinned = f" ({len(every) - number} pinned to other engines)" if number < len(every) else ""
    each = "" if per_engine == 1 else f" for {per_engine} each"
    has = f"{host} has {_count(len(every), 'GPU')}{pinned} and {_count(len(there), 'engine')}{each}"
    if number >= per_engine:
        fit = number // per_engine
        return f"{has}: --share lets engines share them, -t pins {fit} of the engines"
    if len(every) >= per_engine:
        return f"{has}: --share lets engines share them"
    way = f"nobody can have {per_engine}" if every else "%gpu off --cluster runs all on CPUs"
    return f"{has}: {way}"


def freest(table: ClusterTable, number: int, wants: Wants = _NO_WANTS) -> dict[int, str]:
    """By engine id, one of the ``number`` devices with the most free memory on all hosts.

    A device needs an engine that was given it: where all of those have one already, it is passed
    over. The other engines are not in the answer.

    Raises:
        DeviceError: there are not so many devices with an engine for each.
    """
    able: dict[str, list[int]] = {}  # hosts of two names may be one machine: by UUID alone
    free: dict[str, tuple[int, str, int]] = {}
    for host, engines in table.hosts.items():
        for engine, mine in sorted(_of_host(host, engines, wants).items()):
            for unit in mine:
                able.setdefault(unit.uuid, []).append(engine)
                free.setdefault(unit.uuid, (-(unit.memory_free or 0), host, unit.index))
    owned: dict[int, str] = {}
    for uuid in sorted(free, key=free.__getitem__):
        if len(owned) < number:
            _match(uuid, able, owned)
    if len(owned) < number:
        raise DeviceError(
            f"auto {number}: the cluster has {_count(len(free), 'GPU')} and "
            f"{_count(sum(map(len, table.hosts.values())), 'engine')}, which is enough for "
            f"{len(owned)}"
        )
    return owned


def _of_host(
    host: str, engines: Sequence[EngineDevices], wants: Wants = _NO_WANTS
) -> dict[int, list[Unit]]:
    """By engine of a host, the devices that it was given and that fit.

    Raises:
        DeviceError: the devices cannot be listed, or the engines do not list the same ones.
    """
    tables = {each.engine: each.table for each in engines if each.table is not None}
    first = next(iter(tables.values()))
    if first.error is not None:
        raise DeviceError(f"{host}: {first.error}")
    found = units(first)
    for table in tables.values():
        if {unit.uuid for unit in units(table)} != {unit.uuid for unit in found}:
            # Containers on one host may each have devices of their own under one name of the host.
            raise DeviceError(
                f"the engines of {host} do not list the same GPUs: are they in different "
                "containers? Pin them one container at a time, with -t"
            )
    fitting = {device.index for device in first if refusal(device, wants) is None}
    fit = [unit for unit in found if unit.index in fitting]
    return {each.engine: [unit for unit in fit if unit.among(each.given)] for each in engines}


def _count(number: int, what: str) -> str:
    return f"{number or 'no'} {noun(number, what)}"
