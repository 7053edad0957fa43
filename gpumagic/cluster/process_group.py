"""Make the engines a ``torch.distributed`` process group."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from gpumagic.cluster import distributed
from gpumagic.cluster.connection import Cluster
from gpumagic.cluster.rpc import Reply, call
from gpumagic.cluster.selection import complete_table, devices
from gpumagic.cluster.timeouts import TIMEOUT
from gpumagic.errors import DeviceError
from gpumagic.results import ClusterTable, EngineDevices, ProcessGroup
from gpumagic.system.text import plural

#: Seconds for all ranks to join, and for one to leave.
_JOIN_TIMEOUT, _LEAVE_TIMEOUT = 120.0, 30.0


def group(
    cluster: Cluster, engines: Sequence[int] | None = None, *, timeout: float = TIMEOUT
) -> ProcessGroup:
    """Return the process group that the engines say they are in."""
    found = devices(cluster, engines, timeout=timeout)
    joined = {each.engine: each.rank for each in found if each.rank is not None}
    failed = {each.engine: each.error for each in found if each.error is not None}
    backend = next((each.backend for each in found if each.backend is not None), None)
    return ProcessGroup(joined, backend, failed=failed)


def init_group(
    cluster: Cluster,
    engines: Sequence[int] | None = None,
    *,
    backend: str = "auto",
    timeout: float = _JOIN_TIMEOUT,
) -> ProcessGroup:
    """Call ``init_process_group`` on the engines, with ranks in the order of their ids.

    Rank, world size, the ranks on the host, master address and port are set as by ``torchrun``.
    ``backend`` auto is ``nccl`` if every engine has a GPU of its own that torch can use, else
    ``gloo``. All have to join within ``timeout`` seconds; collectives keep torch's own timeout.

    On one host the store is a private file, so no other user can read or change it, and gloo stays
    on loopback, where torch does not authenticate connections. On several hosts the network between
    them must be trusted: torch has no password.

    Raises:
        DeviceError: an engine cannot take part; no group was made.
    """
    chosen = cluster.ids if engines is None else engines
    found = complete_table(cluster, chosen, timeout)
    hosts = {each.engine: f"{each.host} {each.machine}" for each in found}
    planned = distributed.plan(hosts)
    first = min(planned)
    names = {e.host: None for e in found if hosts[e.engine] != hosts[first] and e.host}
    others = [*names, cluster.location] if names and cluster.location else [*names]
    prepared = _prepare(cluster, chosen, first, others, timeout)
    notes = list(_about_devices(found, planned))
    if backend == "auto":
        usable = all(reply.value[2] for reply in prepared.values())
        backend = "nccl" if usable and _own_devices(found) else "gloo"
        if usable and backend == "gloo":
            notes.append("gloo, since ranks would share a GPU, which nccl refuses: %gpu pin first")
    address, port, _, file = prepared[first].value
    replies = call(
        cluster,
        chosen,
        "join",
        {"backend": backend, "master": (address, port), "file": file, "timeout": timeout},
        each=planned,
        timeout=timeout + 10,
    )
    failed = {engine: reply.error for engine, reply in replies.items() if reply.error}
    joined = {e: planned[e]["rank"] for e, reply in replies.items() if reply.error is None}
    if failed:  # a part of a group would wait for the rest for ever
        _leave(cluster, [*{first: None, **joined}], _LEAVE_TIMEOUT)
        joined = {}
    if not joined:
        return ProcessGroup(failed=failed)
    master = None if file else f"{address}:{port}"
    return ProcessGroup(joined, backend, master, failed, tuple(notes))


def _prepare(
    cluster: Cluster, engines: Sequence[int], first: int, others: Sequence[str], timeout: float
) -> dict[int, Reply]:
    """Prepare the rendezvous on every engine; ``first`` is rank 0, ``others`` the other hosts.

    Raises:
        DeviceError: an engine cannot take part.
    """
    # Only the master needs an address for the others.
    roles = {
        e: {"other_hosts": others if e == first else [], "is_master": e == first} for e in engines
    }
    prepared = call(cluster, engines, "rendezvous", each=roles, timeout=timeout)
    for engine, reply in prepared.items():
        if reply.error is not None:
            raise DeviceError(f"engine {engine}: {reply.error}; no process group was made")
    return prepared


def _first_device(each: EngineDevices) -> str | None:
    """Return the UUID of an engine's ``cuda:0``."""
    return next((d.uuid for d in each.table or () if d.ordinal == 0), None)


def _own_devices(found: ClusterTable) -> bool:
    """Return whether every engine has a ``cuda:0`` of its own."""
    firsts = [_first_device(each) for each in found]
    return None not in firsts and len({*firsts}) == len(firsts)


def _about_devices(found: ClusterTable, planned: Mapping[int, Mapping[str, int]]) -> Iterator[str]:
    """Yield a note where ``LOCAL_RANK`` is not the ordinal of an engine's device."""
    for each in found:
        seen = sum(bool(device.visible) for device in each.table or ())
        if 0 < seen <= planned[each.engine]["local_rank"]:
            yield "pinned engines see their GPU as cuda:0: LOCAL_RANK is no device index there"
            return


def end_group(
    cluster: Cluster, engines: Sequence[int] | None = None, *, timeout: float = _LEAVE_TIMEOUT
) -> ProcessGroup:
    """Call ``destroy_process_group`` on the engines, and restore their variables."""
    chosen = cluster.ids if engines is None else engines
    replies = _leave(cluster, chosen, timeout)
    failed = {engine: reply.error for engine, reply in replies.items() if reply.error}
    left = sum(bool(reply.value) for reply in replies.values())
    note = f"{plural(left, 'rank')} left the process group"
    return ProcessGroup(failed=failed, notes=(note if left else "there was no process group",))


def _leave(cluster: Cluster, engines: Sequence[int], timeout: float) -> Mapping[int, Reply]:
    replies = call(cluster, engines, "leave", timeout=timeout)
    answered = [engine for engine, reply in replies.items() if reply.error is None]
    call(cluster, answered, "close_rendezvous", timeout=timeout)
    return replies
