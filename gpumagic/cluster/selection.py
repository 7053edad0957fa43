"""List the GPUs of engines, and choose which of them each engine sees."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gpumagic.cluster.calls import call
from gpumagic.cluster.connection import Cluster
from gpumagic.errors import DeviceError
from gpumagic.results.cluster import ClusterSelection, ClusterTable, EngineResult
from gpumagic.selection.spec import parse
from gpumagic.system.text import plural

#: Seconds for an engine to choose: some start the driver for the first time.
_TIMEOUT = 30.0


def devices(cluster: Cluster, engines: Sequence[int] | None = None) -> ClusterTable:
    """List what every engine sees of its host's GPUs; needs no torch there, initialises no CUDA.

    An engine that does not answer within 5 seconds is in the table with the reason.

    Raises:
        DeviceError: there is no engine.
    """
    asked = cluster.ids if engines is None else engines
    rows = call(cluster, "devices", {engine: {} for engine in asked})
    tables = tuple(
        EngineResult(row.engine, row.host, row.pid, row.value[0] if row.value else None, row.error)
        for row in rows
    )
    return ClusterTable(tables, cluster.source)


def choose(
    cluster: Cluster,
    spec: str,
    engines: Sequence[int] | None = None,
    *,
    min_free: int | None = None,
    idle: bool = False,
    claim: bool = True,
) -> ClusterSelection:
    """Make the same choice on every engine, verified there.

    With ``auto N`` each engine chooses N free GPUs of its host. Since each claims what it chooses,
    engines of one host get different GPUs, as long as there are enough.

    Raises:
        SpecError: the spec is invalid.
    """
    parse(spec)
    specs = dict.fromkeys(cluster.ids if engines is None else engines, spec)
    return _apply(cluster, spec, specs, min_free=min_free, idle=idle, claim=claim)


def pin(
    cluster: Cluster, engines: Sequence[int] | None = None, *, claim: bool = True
) -> ClusterSelection:
    """Give each engine one GPU: the engine with local rank i of a host gets its GPU i.

    Ranks count all engines of the host that were started with the same GPUs, so that a scheduler
    that gave each engine its own GPU is right, too.

    Raises:
        DeviceError: a host has fewer GPUs than engines, or an engine does not answer; nothing was
            changed.
    """
    rows = call(cluster, "devices", {engine: {} for engine in cluster.ids})
    silent = [row for row in rows if row.error is not None]
    if silent:
        raise DeviceError(f"engine {silent[0].engine}: {silent[0].error}; nothing was changed")
    ranks: dict[tuple[str | None, tuple[str, ...]], list[int]] = {}
    specs = {}
    chosen = {*(cluster.ids if engines is None else engines)}
    for row in rows:
        table, given = row.value
        mates = ranks.setdefault((row.host, given), [])
        mates.append(row.engine)
        if row.engine not in chosen:
            continue
        if table.error is not None:
            raise DeviceError(f"{row.host}: {table.error}; nothing was changed")
        if len(mates) > len(given):
            raise DeviceError(
                f"{row.host} has {plural(len(given), 'GPU')} for more engines than that: nothing "
                f"was changed; -t leaves engines out, from engine {row.engine} on"
            )
        specs[row.engine] = given[len(mates) - 1]
    return _apply(cluster, "pin", specs, min_free=None, idle=False, claim=claim)


def _apply(
    cluster: Cluster, requested: str, specs: dict[int, str], **options: Any
) -> ClusterSelection:
    asked = {engine: {"spec": spec, **options} for engine, spec in specs.items()}
    return ClusterSelection(tuple(call(cluster, "choose", asked, _TIMEOUT)), requested)
