"""``torch.distributed``'s process group, made of the engines by what ipyparallel knows of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gpumagic.cluster import ranks
from gpumagic.cluster.asking import ask
from gpumagic.cluster.choosing import devices, whole
from gpumagic.cluster.connecting import Cluster
from gpumagic.errors import DeviceError
from gpumagic.results import ProcessGroup

#: Seconds for all ranks to meet, and for one to leave.
_MEETING, _LEAVING = 120.0, 30.0


def group(cluster: Cluster, engines: Sequence[int] | None = None) -> ProcessGroup:
    """The group that the engines are in, as they say."""
    found = devices(cluster, engines)
    joined = {each.engine: each.rank for each in found if each.rank is not None}
    failed = {each.engine: each.error for each in found if each.error is not None}
    backend = next((each.backend for each in found if each.backend is not None), None)
    return ProcessGroup(joined, backend, failed=failed)


def init_group(
    cluster: Cluster,
    engines: Sequence[int] | None = None,
    *,
    backend: str = "auto",
    timeout: float = _MEETING,
) -> ProcessGroup:
    """Call ``init_process_group`` on the engines: their ranks are in the order of their ids.

    Rank, world size, the ranks on the host, master address and port are set as by ``torchrun``.
    ``backend`` auto is ``nccl`` if every engine has GPUs that torch can use, else ``gloo``.

    Raises:
        DeviceError: an engine cannot take part; no group was made.
    """
    chosen = cluster.ids if engines is None else engines
    towards = cluster.location
    meeting: dict[int, Any] = {}
    arguments = {"towards": towards}
    for engine, answer in ask(cluster, chosen, "rendezvous", arguments, timeout=timeout).items():
        if answer.error is not None:
            raise DeviceError(f"engine {engine}: {answer.error}; no process group was made")
        meeting[engine] = answer.value
    if backend == "auto":
        backend = "nccl" if all(usable for _, _, usable in meeting.values()) else "gloo"
    found = whole(cluster, chosen, timeout)
    planned = ranks.plan({each.engine: each.host or "" for each in found})
    address, port, _ = meeting[min(planned)]
    master = ("127.0.0.1" if len(found.hosts) == 1 else address, port)
    answers = ask(
        cluster,
        chosen,
        "join",
        {"backend": backend, "master": master, "timeout": timeout},
        each=planned,
        timeout=timeout + 10,
    )
    failed = {engine: answer.error for engine, answer in answers.items() if answer.error}
    joined = {e: planned[e]["rank"] for e, answer in answers.items() if answer.error is None}
    if failed and joined:  # a part of a group is of no use, and would wait for the rest for ever
        ask(cluster, list(joined), "leave", timeout=_LEAVING)
        joined = {}
    where = f"{master[0]}:{master[1]}" if joined else None
    return ProcessGroup(joined, backend if joined else None, where, failed)


def end_group(
    cluster: Cluster, engines: Sequence[int] | None = None, *, timeout: float = _LEAVING
) -> ProcessGroup:
    """Call ``destroy_process_group`` on the engines, and put their variables back."""
    chosen = cluster.ids if engines is None else engines
    answers = ask(cluster, chosen, "leave", timeout=timeout)
    failed = {engine: answer.error for engine, answer in answers.items() if answer.error}
    left = sum(bool(answer.value) for answer in answers.values())
    note = f"{left} rank{'s' * (left != 1)} left the process group"
    return ProcessGroup(failed=failed, notes=(note if left else "there was no process group",))
