"""Ask engines: for the GPUs of their hosts, and to choose which of them each engine sees."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from gpumagic.cluster import calls, engine
from gpumagic.cluster.connection import Cluster
from gpumagic.cluster.results import ClusterSelection, ClusterTable, EngineResult
from gpumagic.cuda.visible_devices import MASK
from gpumagic.errors import DeviceError
from gpumagic.results.selection import Selection
from gpumagic.selection.spec import parse
from gpumagic.wording import plural

#: Seconds for engines to choose: some start the driver for the first time.
_CHOICE = 30.0


def devices(cluster: Cluster, engines: Sequence[int] | None = None) -> ClusterTable:
    """List what every engine sees of its host's GPUs; needs no torch there, initialises no CUDA.

    An engine that does not answer within 5 seconds is in the table with the reason.

    Raises:
        DeviceError: there is no engine.
    """
    rows = _visible(cluster, cluster.ids if engines is None else engines)
    tables = (replace(row, value=row.value.table) if row.value else row for row in rows)
    return ClusterTable(tuple(tables), cluster.source)


def _visible(cluster: Cluster, engines: Iterable[int]) -> list[EngineResult]:
    asked = dict.fromkeys(engines, calls.source(engine.devices))
    return calls.call(cluster, asked, engine.Visible)


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
    return _apply(cluster, spec, specs, min_free, idle, claim)


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
    rows = _visible(cluster, cluster.ids)
    silent = [row for row in rows if row.error is not None]
    if silent:
        raise DeviceError(f"engine {silent[0].engine}: {silent[0].error}; nothing was changed")
    ranks: dict[tuple[str | None, tuple[str, ...]], list[int]] = {}
    specs = {}
    chosen = {*(cluster.ids if engines is None else engines)}
    for row in rows:
        table, given = row.value.table, row.value.given
        mates = ranks.setdefault((row.host, given), [])
        mates.append(row.engine)
        if row.engine not in chosen:
            continue
        if table.error is not None:
            raise DeviceError(f"{row.host}: {table.error}; nothing was changed")
        if len(mates) > len(given):
            of = f" of {len(table)}" if len(table) > len(given) else ""
            raise DeviceError(
                f"{row.host}: more engines were started with {plural(len(given), 'GPU')}{of} "
                f"({MASK}): nothing was changed; -t leaves engines out, from engine {row.engine} on"
            )
        specs[row.engine] = given[len(mates) - 1]
    return _apply(cluster, "pin", specs, None, False, claim)


def _apply(
    cluster: Cluster, requested: str, specs: dict[int, str], *options: object
) -> ClusterSelection:
    asked = {each: calls.source(engine.choose, spec, *options) for each, spec in specs.items()}
    return ClusterSelection(tuple(calls.call(cluster, asked, Selection, _CHOICE)), requested)
