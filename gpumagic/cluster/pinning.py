"""Which engine gets which devices: pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from gpumagic.errors import DeviceError
from gpumagic.results import ClusterTable, Device, EngineDevices
from gpumagic.visibility import Wants, refusal

_NO_WANTS = Wants()


@dataclass(frozen=True)
class Unit:
    """What can be given to an engine: a device, or a MIG instance of one."""

    uuid: str
    index: int
    memory_free: int | None = None


def units(devices: Iterable[Device]) -> list[Unit]:
    """What there is to give, in nvidia-smi's order; devices that cannot be read are left out."""
    found = []
    for device in devices:
        if device.mig:
            for part in device.mig:
                known = None not in (part.memory_total, part.memory_used)
                free = (part.memory_total or 0) - (part.memory_used or 0) if known else None
                found.append(Unit(part.uuid, device.index, free))
        elif device.uuid is not None and device.error is None:
            found.append(Unit(device.uuid, device.index, device.memory_free))
    return found


def taken(table: ClusterTable) -> frozenset[str]:
    """The UUIDs of what engines see that do not see all there is: it is theirs already."""
    found: set[str] = set()
    for each in table:
        seen = [device for device in each.table or () if device.visible]
        if each.table is not None and len(seen) < len(each.table):
            found.update(unit.uuid for unit in units(seen))
    return frozenset(found)


def by_rank(
    table: ClusterTable,
    per_engine: int = 1,
    *,
    share: bool = False,
    taken: Collection[str] = frozenset(),
) -> dict[int, str]:
    """By engine id, the UUIDs of its ``per_engine`` devices: by its rank among its host's engines.

    With ``share`` engines take the devices in turn, so that several may have the same.

    Raises:
        DeviceError: a host has too few devices; nothing was changed.
    """
    chosen: dict[int, str] = {}
    for host, engines in table.hosts.items():
        there = [unit for unit in _of_host(host, engines) if unit.uuid not in taken]
        needed = per_engine * (1 if share else len(engines))
        if len(there) < needed:
            each = "" if per_engine == 1 else f" for {per_engine} each"
            raise DeviceError(
                f"{host} has {_count(len(there), 'GPU')} and {_count(len(engines), 'engine')}"
                f"{each}: {_way_out(len(there), per_engine)}"
            )
        for rank, each_engine in enumerate(sorted(engines, key=lambda each: each.engine)):
            first = rank * per_engine
            mine = [there[(first + i) % len(there)] for i in range(per_engine)]
            chosen[each_engine.engine] = ",".join(unit.uuid for unit in mine)
    given = [uuid for spec in chosen.values() for uuid in spec.split(",")]
    if not share and len({*given}) < len(given):
        raise DeviceError(
            "hosts of different names have the same GPUs: are they containers on one machine? "
            "Pin the engines of one of them at a time, with -t"
        )
    return chosen


def _way_out(number: int, per_engine: int) -> str:
    if number < per_engine:
        return f"nobody can have {per_engine}" if number else "%gpu off --cluster runs all on CPUs"
    fit = number // per_engine
    return f"--share lets engines share them, -t pins {fit} of the engines"


def freest(table: ClusterTable, number: int, wants: Wants = _NO_WANTS) -> dict[int, str]:
    """By engine id, one of the ``number`` devices with the most free memory on all hosts.

    A device needs an engine of its own host: where all of those have one already, it is passed
    over. The other engines are not in the answer.

    Raises:
        DeviceError: there are not so many devices with an engine for each.
    """
    waiting = {
        host: sorted(each.engine for each in engines) for host, engines in table.hosts.items()
    }
    free = sorted(
        (
            (unit, host)
            for host, engines in table.hosts.items()
            for unit in _of_host(host, engines, wants)
        ),
        key=lambda pair: (-(pair[0].memory_free or 0), pair[1], pair[0].index),
    )
    chosen: dict[int, str] = {}
    for unit, host in free:
        if len(chosen) == number:
            break
        if waiting[host]:
            chosen[waiting[host].pop(0)] = unit.uuid
    if len(chosen) < number:
        engines = sum(len(each) for each in table.hosts.values())
        raise DeviceError(
            f"auto {number}: the cluster has {_count(len(free), 'GPU')} and "
            f"{_count(engines, 'engine')}, which is enough for {len(chosen)}"
        )
    return chosen


def _of_host(host: str, engines: Sequence[EngineDevices], wants: Wants = _NO_WANTS) -> list[Unit]:
    """The host's devices that its engines were given and that fit: those that all of them list.

    Containers on one host may each have devices of their own under one name of the host.

    Raises:
        DeviceError: the host's devices cannot be listed.
    """
    answered = [each for each in engines if each.table is not None]
    first = answered[0].table
    if first is not None and first.error is not None:
        raise DeviceError(f"{host}: {first.error}")
    found = _given(answered[0])
    for other in answered[1:]:
        listed = {unit.uuid for unit in _given(other)}
        if listed != {unit.uuid for unit in found}:
            raise DeviceError(
                f"the engines of {host} do not list the same GPUs: are they in different "
                "containers? Pin them one container at a time, with -t"
            )
    fitting = {device.index for device in first or () if refusal(device, wants) is None}
    return [unit for unit in found if unit.index in fitting]


def _given(engine: EngineDevices) -> list[Unit]:
    return units(device for device in engine.table or () if device.index in engine.allowed)


def _count(number: int, what: str) -> str:
    return f"{number or 'no'} {what}{'' if number == 1 else 's'}"
