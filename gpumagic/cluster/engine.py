"""What an engine answers. Runs there; `asking.ask` calls `answer` by name."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpumagic._version import __version__
from gpumagic.cuda.visible_devices import MASK
from gpumagic.errors import DeviceError, GpuMagicError
from gpumagic.results import CudaTiming, DeviceTable, MemoryDelta, Selection
from gpumagic.results.base import plain

Reply = tuple[str, Any]


def answer(version: str, question: str, arguments: dict[str, Any], largest: int) -> Reply:
    """The answer to a question of a gpumagic of that ``version``: a kind, and the content.

    ``("ok", JSON)``, ``("version", ours)``, ``("large", bytes)`` or ``("error", one line)``.
    """
    if version != __version__:
        return "version", __version__
    try:
        value = QUESTIONS[question](**arguments)
    except GpuMagicError as error:
        return "error", str(error)
    data = json.dumps(plain(value))
    return ("large", len(data)) if len(data) > largest else ("ok", data)


@dataclass(frozen=True)
class Place:
    """Where an engine is, and its part in ``torch.distributed``'s group."""

    host: str
    pid: int
    rank: int | None = None
    world_size: int | None = None
    backend: str | None = None
    #: Tells machines of one name apart; None where the system has no such thing.
    machine: str | None = None
    #: Where the group's ranks have met, as far as the variables say: tells groups apart.
    master: str | None = None


def place() -> Place:
    """Where this process is, and its part in a group."""
    from gpumagic.cluster import distributed

    rank, world_size, backend = distributed.membership()
    master = None if rank is None else distributed.master()
    return Place(socket.gethostname(), os.getpid(), rank, world_size, backend, _machine(), master)


def _machine() -> str | None:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return None


def look(
    processes: bool = False,
) -> tuple[Place, DeviceTable, tuple[str, ...], tuple[str, ...]]:
    """Where this engine is, its table of devices, what it was given, and what it was pinned to."""
    from gpumagic.cuda import devices

    table = devices.devices(processes=processes)
    return place(), table, _given(table), _pinned(table)


def _given(table: DeviceTable) -> tuple[str, ...]:
    """The UUIDs of the devices, or of the MIG instances, that this engine was started with."""
    from gpumagic.selection import apply

    try:
        allowed = apply.allowed(table)
    except DeviceError:  # not known: none that it could be pinned to
        return ()
    named = (device.instance or device.uuid for device in allowed)
    return tuple(uuid for uuid in named if uuid is not None)


def _pinned(table: DeviceTable) -> tuple[str, ...]:
    """The UUIDs of what was chosen for this engine since its start."""
    from gpumagic.selection import environment

    mask = environment.now()[MASK]
    if mask is None or (mask == environment.started_with()[MASK] and not environment.made()):
        return ()
    if mask[:4] in ("GPU-", "MIG-"):
        return tuple(mask.split(","))
    return tuple(device.uuid for device in table if device.visible and device.uuid is not None)


def prepare(results: str | None = None) -> Place:
    """Have the magics here; where this is.

    Nothing is left of earlier cells whose results begin with ``results``: another client's may be
    under way.
    """
    shell = _shell()
    shell.extension_manager.load_extension("gpumagic")
    if results is not None:
        for name in [name for name in shell.user_ns if name.startswith(results)]:
            del shell.user_ns[name]
    return place()


def choose(spec: str, restart: bool = False, force: bool = False) -> tuple[Place, Selection]:
    """Choose the devices of this engine; restart it in place if it is too late and that is wanted.

    The restarted engine is asked the same once more, and then says what became of it.
    """
    from gpumagic.cluster import engine_restart
    from gpumagic.selection import apply, environment

    prepare()
    if engine_restart.just_restarted():
        return place(), apply.restarted(spec)
    before = environment.now()
    chosen = apply.choose(spec)
    if chosen.status == "too-late" and restart:
        try:
            engine_restart.replace(_shell(), force=force)
        except BaseException:
            environment.restore(before)
            raise
    return place(), chosen


def take(name: str) -> CudaTiming | MemoryDelta | None:
    """The result that the variable ``name`` holds, which then is no more; None if there is none."""
    found = _shell().user_ns.pop(name, None)
    return found if isinstance(found, (CudaTiming, MemoryDelta)) else None


def _shell() -> Any:
    from IPython.core.getipython import get_ipython

    return get_ipython()


def rendezvous(
    towards: tuple[str, ...] = (), meets: bool = False
) -> tuple[str, int, bool, str | None]:
    """What `distributed.rendezvous` prepares for a process group here."""
    prepare()  # so that asking torch for GPUs does not freeze what this process sees of them
    from gpumagic.cluster import distributed

    return distributed.rendezvous(towards, meets)


def join(**settings: Any) -> str:
    """Join the process group; the backend that it has."""
    from gpumagic.cluster import distributed

    return distributed.join(**settings)


def leave() -> bool:
    """Leave the process group; whether there was one."""
    from gpumagic.cluster import distributed

    return distributed.leave()


#: What can be asked. What each returns is annotated: nothing else is taken for its answer.
QUESTIONS: dict[str, Callable[..., Any]] = {
    each.__name__: each for each in (look, prepare, choose, take, rendezvous, join, leave)
}
