"""List the devices of engines, and select which of them each engine sees."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

from gpumagic.cluster import assignment
from gpumagic.cluster.connection import Cluster
from gpumagic.cluster.rpc import call
from gpumagic.cluster.timeouts import TIMEOUT
from gpumagic.errors import DeviceError
from gpumagic.render.units import spans
from gpumagic.results import ClusterSelection, ClusterTable, EngineDevices, EngineSelection
from gpumagic.selection.auto import NO_WANTS, Wants
from gpumagic.selection.spec import parse
from gpumagic.system.text import noun

#: Seconds for an engine to select devices.
_SELECT_TIMEOUT = 30.0
#: How often ``auto`` chooses again where another process is faster.
_ROUNDS = 10
#: The most seconds before that, and their generator, apart from the user's `random`.
_PAUSE, _RANDOM = 0.5, Random()


def devices(
    cluster: Cluster,
    engines: Sequence[int] | None = None,
    *,
    processes: bool = False,
    timeout: float = TIMEOUT,
) -> ClusterTable:
    """List what every engine sees of its host's GPUs; needs no torch there, initialises no CUDA.

    An engine that does not answer within ``timeout`` seconds is in the table with the reason.

    Raises:
        DeviceError: there is no engine, or the controller is gone.
    """
    chosen = cluster.ids if engines is None else engines
    replies = call(cluster, chosen, "device_table", {"processes": processes}, timeout=timeout)
    rows = []
    for engine, reply in replies.items():
        if reply.error is not None:
            rows.append(EngineDevices(engine, error=reply.error))
            continue
        place, table, given, pinned = reply.value
        rows.append(
            EngineDevices(
                engine,
                host=place.host,
                pid=place.pid,
                rank=place.rank,
                world_size=place.world_size,
                backend=place.backend,
                table=table,
                given=given,
                pinned=pinned,
                machine=place.machine,
            )
        )
    return ClusterTable(tuple(rows), cluster.source, timeout, processes)


def choose(
    cluster: Cluster,
    spec: str,
    engines: Sequence[int] | None = None,
    *,
    wants: Wants = NO_WANTS,
    claim: bool = True,
    timeout: float | None = None,
) -> ClusterSelection:
    """Select the same devices on every engine, verified there.

    ``auto N`` selects the N devices with the most free memory on all hosts, each for one engine of
    its host, and those that other processes claim last; the other engines see none. Where another
    process claims one of them before the engine does, all are chosen again.
    With ``claim`` each engine claims its devices in its host's registry.

    Raises:
        SpecError: the spec is invalid.
        DeviceError: ``auto`` does not find enough; nothing was changed.
    """
    parsed = parse(spec)
    chosen = cluster.ids if engines is None else engines
    options: dict[str, Any] = {"claim": claim}
    if parsed.kind != "auto":
        specs = dict.fromkeys(chosen, spec)
        notes: tuple[str, ...] = ()
        if claim and parsed.kind == "devices":
            table = devices(cluster, chosen, timeout=timeout or TIMEOUT)
            notes = assignment.claimed_by_others(table, assignment.named(table, parsed))
        return _apply(cluster, spec, specs, options, timeout, notes)[0]
    for _ in range(_ROUNDS):
        table = complete_table(cluster, chosen, timeout or TIMEOUT)
        freest = assignment.most_free(table, parsed.count, wants, claims=claim)
        specs = {**dict.fromkeys(chosen, "off"), **freest}
        notes = assignment.claimed_by_others(table, specs) if claim else ()
        if claim:
            options["known"] = assignment.known_claims(table)
        result, claimed_before = _apply(cluster, spec, specs, options, timeout, notes)
        if not claimed_before:
            break
        # Two clusters that choose in step would do so again.
        time.sleep(_RANDOM.uniform(0, _PAUSE))
    return result


def pin(
    cluster: Cluster,
    engines: Sequence[int] | None = None,
    *,
    per_engine: int = 1,
    share: bool = False,
    claim: bool = True,
    timeout: float | None = None,
) -> ClusterSelection:
    """Assign ``per_engine`` devices to each engine, by its rank among its host's engines.

    No engine gets a device that it was not given at its start, nor, unless ``share`` is given, one
    that is pinned to another engine.

    Raises:
        DeviceError: a host has too few devices, or an engine that may hold some does not reply,
            and ``share`` is not given; nothing was changed.
    """
    chosen = cluster.ids if engines is None else engines
    table = complete_table(cluster, chosen, timeout or TIMEOUT)
    others = [engine for engine in cluster.ids if engine not in {*chosen}]
    pinned = frozenset[str]()
    if others and not share:
        other_table = devices(cluster, others, timeout=timeout or TIMEOUT)
        for each in other_table.silent:
            raise DeviceError(
                f"engine {each.engine} does not answer and may hold any GPU ({each.error}); "
                "nothing was changed (--share ignores that)"
            )
        pinned = frozenset(uuid for each in other_table for uuid in each.pinned)
    specs = assignment.by_rank(table, per_engine, share=share, taken=pinned)
    notes = assignment.claimed_by_others(table, specs) if claim else ()
    options = {"claim": claim}
    return _apply(cluster, "pin", specs, options, timeout, notes)[0]


def complete_table(cluster: Cluster, engines: Sequence[int], timeout: float) -> ClusterTable:
    """Return the device table, if every engine has replied: others may use any device.

    Raises:
        DeviceError: an engine has not replied.
    """
    table = devices(cluster, engines, timeout=timeout)
    for each in table.silent:
        raise DeviceError(
            f"engine {each.engine}: {each.error}; nothing was changed (-t leaves engines out)"
        )
    return table


def _apply(
    cluster: Cluster,
    requested: str,
    specs: Mapping[int, str],
    options: Mapping[str, Any],
    timeout: float | None,
    notes: tuple[str, ...],
) -> tuple[ClusterSelection, bool]:
    """Apply the engines' choices; also return whether another process claims one's devices."""
    replies = call(
        cluster,
        list(specs),
        "choose",
        options,
        each={engine: {"spec": spec} for engine, spec in specs.items()},
        timeout=timeout or _SELECT_TIMEOUT,
    )
    rows, claimed_before = [], False
    for engine, reply in replies.items():
        if reply.error is not None:
            rows.append(EngineSelection(engine, error=reply.error))
        else:
            place, selection, conflict = reply.value
            claimed_before |= conflict and selection.status != "too-late"
            rows.append(EngineSelection(engine, place.host, place.pid, selection=selection))
    unclaimed: dict[str, list[int]] = {}
    for each in rows:
        for note in each.selection.notes if each.selection else ():
            if note.startswith("not claimed"):
                unclaimed.setdefault(note, []).append(each.engine)
    notes += tuple(
        f"{noun(len(of), 'engine')} {spans(of)}: {note}" for note, of in unclaimed.items()
    )
    return ClusterSelection(requested, tuple(rows), notes), claimed_before
