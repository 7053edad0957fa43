"""The engines' devices, and what each engine is to see of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gpumagic.cluster import assignment
from gpumagic.cluster.connection import Cluster
from gpumagic.cluster.rpc import TIMEOUT, call
from gpumagic.errors import DeviceError
from gpumagic.render.units import spans
from gpumagic.results import ClusterSelection, ClusterTable, EngineDevices, EngineSelection
from gpumagic.selection import spec as device_spec
from gpumagic.selection.spec import Wants
from gpumagic.system.text import noun

_NO_WANTS = Wants()
#: Seconds for an engine to choose, and to come back from a restart.
_CHOOSING, _RESTARTING = 30.0, 90.0


def devices(
    cluster: Cluster,
    engines: Sequence[int] | None = None,
    *,
    processes: bool = False,
    timeout: float = TIMEOUT,
) -> ClusterTable:
    """What every engine sees of its host's GPUs. Needs no torch there, and starts no CUDA.

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
    wants: Wants = _NO_WANTS,
    restart: bool = False,
    force: bool = False,
    timeout: float | None = None,
) -> ClusterSelection:
    """The same choice of devices on every engine, verified there.

    ``auto N``: the N devices with the most free memory on all hosts, each for one engine of its
    host; the other engines see none. With ``restart`` engines where it is too late start afresh in
    place, and lose their variables; ``force`` lets them lose threads and child processes too.

    Raises:
        SpecError: the spec means nothing.
        DeviceError: ``auto`` does not find enough; nothing was changed.
    """
    parsed = device_spec.parse(spec)
    chosen = cluster.ids if engines is None else engines
    specs = dict.fromkeys(chosen, spec)
    if parsed.kind == "auto":
        specs = dict.fromkeys(chosen, "off")
        found = complete_table(cluster, chosen, timeout or TIMEOUT)
        specs |= assignment.freest(found, parsed.count, wants)
    return _apply(cluster, spec, specs, restart, force, timeout)


def pin(
    cluster: Cluster,
    engines: Sequence[int] | None = None,
    *,
    per_engine: int = 1,
    share: bool = False,
    restart: bool = False,
    force: bool = False,
    timeout: float | None = None,
) -> ClusterSelection:
    """Give each engine its own ``per_engine`` devices, by its rank among its host's engines.

    No engine gets what it was not given at its start, nor, unless ``share`` is given, what is
    pinned to another.

    Raises:
        DeviceError: a host has too few devices, or an engine that may hold some does not reply,
            and ``share`` is not given; nothing was changed.
    """
    chosen = cluster.ids if engines is None else engines
    found = complete_table(cluster, chosen, timeout or TIMEOUT)
    others = [engine for engine in cluster.ids if engine not in {*chosen}]
    taken = frozenset[str]()
    if others and not share:
        elsewhere = devices(cluster, others, timeout=timeout or TIMEOUT)
        for each in elsewhere.silent:
            raise DeviceError(
                f"engine {each.engine} does not answer and may hold any GPU ({each.error}); "
                "nothing was changed (--share passes over that)"
            )
        taken = frozenset(uuid for each in elsewhere for uuid in each.pinned)
    specs = assignment.by_rank(found, per_engine, share=share, taken=taken)
    return _apply(cluster, "pin", specs, restart, force, timeout)


def complete_table(cluster: Cluster, engines: Sequence[int], timeout: float) -> ClusterTable:
    """The table, if every engine has answered: a silent one may hold any device.

    Raises:
        DeviceError: one has not.
    """
    found = devices(cluster, engines, timeout=timeout)
    for each in found.silent:
        raise DeviceError(
            f"engine {each.engine}: {each.error}; nothing was changed (-t leaves engines out)"
        )
    return found


def _apply(
    cluster: Cluster,
    requested: str,
    specs: Mapping[int, str],
    restart: bool,
    force: bool,
    timeout: float | None,
) -> ClusterSelection:
    replies = call(
        cluster,
        list(specs),
        "choose",
        {"restart": restart, "force": force},
        each={engine: {"spec": spec} for engine, spec in specs.items()},
        timeout=timeout or (_RESTARTING if restart else _CHOOSING),
    )
    rows = []
    for engine, reply in replies.items():
        if reply.error is not None:
            rows.append(EngineSelection(engine, error=reply.error))
        else:
            place, selection = reply.value
            rows.append(EngineSelection(engine, place.host, place.pid, selection=selection))
    chosen = [(each.engine, each.selection.status) for each in rows if each.selection]
    again = [engine for engine, status in chosen if status == "restarted"]
    notes: tuple[str, ...] = ()
    if again:
        who = f"{noun(len(again), 'engine')} {spans(again)}"
        notes = (f"{who} started afresh in place: variables and process groups there are gone",)
    return ClusterSelection(requested, tuple(rows), notes)
