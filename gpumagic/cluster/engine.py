"""The functions that run on an engine: `rpc.call` calls `answer` there, `execution` a cell's."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpumagic._version import __version__
from gpumagic.cuda.visible_devices import MASK
from gpumagic.errors import DeviceError, GpuMagicError
from gpumagic.results import CudaTiming, DeviceTable, MemoryDelta, Selection
from gpumagic.results.base import plain

Reply = tuple[str, Any]


def answer(version: str, function: str, arguments: dict[str, Any], largest: int) -> Reply:
    """Call a function for a client with gpumagic ``version``, and return a kind and the content.

    ``("ok", JSON)``, ``("version", this one's)``, ``("large", bytes)`` or ``("error", one line)``.
    """
    if version != __version__:
        return "version", __version__
    try:
        value = FUNCTIONS[function](**arguments)
    except GpuMagicError as error:
        return "error", str(error)
    return _encoded(value, largest)


def _encoded(value: Any, largest: int) -> Reply:
    data = json.dumps(plain(value))
    return ("large", len(data)) if len(data) > largest else ("ok", data)


@dataclass(frozen=True)
class Place:
    """The process of an engine, and its membership in a ``torch.distributed`` process group."""

    host: str
    pid: int
    rank: int | None = None
    world_size: int | None = None
    backend: str | None = None
    #: The boot id, which differs between hosts of one name; None where the system has none.
    machine: str | None = None
    #: ``MASTER_ADDR:MASTER_PORT``, which differs between process groups; None if they are not set.
    master: str | None = None


def place() -> Place:
    """Return this process's host, id and membership in a process group."""
    from gpumagic.cluster import distributed

    rank, world_size, backend = distributed.membership()
    master = None if rank is None else distributed.master()
    return Place(socket.gethostname(), os.getpid(), rank, world_size, backend, _machine(), master)


def _machine() -> str | None:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return None


def device_table(
    processes: bool = False,
) -> tuple[Place, DeviceTable, tuple[str, ...], tuple[str, ...]]:
    """Return this engine's `Place` and devices, and the UUIDs of those it was given and has now."""
    from gpumagic.selection.device_table import devices

    table = devices(processes=processes)
    return place(), table, _given(table), _pinned(table)


def _given(table: DeviceTable) -> tuple[str, ...]:
    """Return the UUIDs of the devices, or MIG instances, that this engine was started with."""
    from gpumagic.selection import apply

    try:
        allowed = apply.allowed(table)
    except DeviceError:  # unknown, so it cannot be pinned to any
        return ()
    uuids = (device.instance or device.uuid for device in allowed)
    return tuple(uuid for uuid in uuids if uuid is not None)


def _pinned(table: DeviceTable) -> tuple[str, ...]:
    """Return the UUIDs of the devices that were selected for this engine since its start."""
    from gpumagic.selection import environment

    mask = environment.now()[MASK]
    if mask is None or (mask == environment.started_with()[MASK] and not environment.is_chosen()):
        return ()
    if mask[:4] in ("GPU-", "MIG-"):
        return tuple(mask.split(","))
    return tuple(device.uuid for device in table if device.visible and device.uuid is not None)


def prepare() -> Place:
    """Load the extension here, and return this engine's `Place`."""
    _shell().extension_manager.load_extension("gpumagic")
    return place()


def choose(
    spec: str,
    claim: bool = True,
    known: Mapping[str, Collection[int]] | None = None,
) -> tuple[Place, Selection, bool]:
    """Select the devices of this engine.

    With ``known``, by UUID the pids whose claims the choice was made by, also return whether
    another process claims one of the devices.
    """
    from gpumagic.selection import apply
    from gpumagic.selection.spec import parse

    prepare()
    return _chosen(apply.choose(parse(spec), claim=claim), known)


def _chosen(
    chosen: Selection, known: Mapping[str, Collection[int]] | None
) -> tuple[Place, Selection, bool]:
    from gpumagic.cuda.process_state import STATE
    from gpumagic.selection import claims

    others = claims.others_of(STATE.choice.claim) if known is not None else {}
    conflict = any(
        claim.pid not in (known or {}).get(uuid, ())
        for uuid, found in others.items()
        for claim in found
    )
    return place(), chosen, conflict


def _shell() -> Any:
    from IPython.core.getipython import get_ipython

    return get_ipython()


# --- a cell ------------------------------------------------------------------------------------

#: The kind of reply of an engine that did not run a cell, since it is in a process group.
IN_GROUP = "in group"
#: The source of our payload in an execute_reply.
PAYLOAD = "gpumagic"
#: The variable that holds a magic's result until the magic has returned.
_RESULT = "_gpumagic_result"
#: By client, its last run whose reply could not carry a result, and that result.
_partial_results: dict[str, tuple[int, CudaTiming | MemoryDelta]] = {}


@dataclass(frozen=True)
class CellRequest:
    """A client's request to run a magic; sent as the literal arguments of `run_cell`."""

    magic: str
    line: str
    cell: str | None
    version: str
    #: Identifies the client, and its run.
    client: str
    run: int
    #: Whether to run it only outside of a process group: the client knows of none.
    ungrouped: bool
    #: Bytes of a result, at most.
    largest: int


def run_cell(*request: Any) -> Any:
    """Run a magic for a client, and return its value; runs as a cell of its own.

    The payload of the execute_reply has the result. An error reply has no payload for the client,
    so `partial_result` fetches what there is.
    """
    __tracebackhide__ = True
    asked = CellRequest(*request)
    if not _accepts(asked):
        return None
    with _reply(asked):
        return _call(asked)


async def run_async_cell(*request: Any) -> Any:
    """Run a magic whose code awaits; see `run_cell`."""
    __tracebackhide__ = True
    asked = CellRequest(*request)
    if not _accepts(asked):
        return None
    with _reply(asked):
        return await _call(asked)


def _accepts(request: CellRequest) -> bool:
    """Return whether to run the cell; otherwise the reply says why not."""
    if request.version != __version__:
        return _refuse("version", __version__)
    if request.ungrouped and place().rank is not None:
        return _refuse(IN_GROUP, "")
    prepare()
    return True


def _refuse(kind: str, content: str) -> bool:
    _write_payload((kind, content))
    return False


def _call(request: CellRequest) -> Any:
    __tracebackhide__ = True
    shell = _shell()
    # Not by run_cell_magic: its frame, and its variables, would be in the user's tracebacks.
    magic = shell.find_line_magic(request.magic)
    return magic(f"-q -v {_RESULT} {request.line}", request.cell, shell.user_ns)


@contextmanager
def _reply(request: CellRequest) -> Iterator[None]:
    """Hand the magic's result to the client when the block ends, also by an exception."""
    __tracebackhide__ = True
    _partial_results.pop(request.client, None)
    failed = True
    try:
        yield
        failed = False
    finally:
        found = _shell().user_ns.pop(_RESULT, None)
        result = found if isinstance(found, (CudaTiming, MemoryDelta)) else None
        if not failed:
            _write_payload(_encoded((place(), result), request.largest))
        elif result is not None:
            _partial_results[request.client] = request.run, result


def _write_payload(reply: Reply) -> None:
    _shell().payload_manager.write_payload({"source": PAYLOAD, "reply": reply})


def partial_result(client: str, run: int) -> CudaTiming | MemoryDelta | None:
    """Return, and forget, the result of a run of ``client`` whose code raised; None without one."""
    found, result = _partial_results.pop(client, (None, None))
    return result if found == run else None


# --- a process group ---------------------------------------------------------------------------


def rendezvous(
    other_hosts: tuple[str, ...] = (), is_master: bool = False
) -> tuple[str, int, bool, str | None]:
    """Prepare the rendezvous of a process group here; see `distributed.rendezvous`."""
    prepare()  # so that asking torch for GPUs does not fix which of them this process sees
    from gpumagic.cluster import distributed

    return distributed.rendezvous(other_hosts, is_master)


def join(**settings: Any) -> str:
    """Join the process group, and return its backend."""
    from gpumagic.cluster import distributed

    return distributed.join(**settings)


def leave() -> bool:
    """Leave the process group, and return whether there was one."""
    from gpumagic.cluster import distributed

    return distributed.leave()


def close_rendezvous() -> bool:
    """Remove what `rendezvous` has prepared, when all ranks have left; return whether there was."""
    from gpumagic.cluster import distributed

    return distributed.close_rendezvous()


#: What `answer` calls. Each has annotations of what it returns: a reply must fit them.
FUNCTIONS: dict[str, Callable[..., Any]] = {
    function.__name__: function
    for function in (
        *(device_table, prepare, choose, partial_result),
        *(rendezvous, join, leave, close_rendezvous),
    )
}
