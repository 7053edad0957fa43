"""``torch.distributed``'s process group over the engines. Runs on them, apart from `plan`."""

from __future__ import annotations

import os
import socket
import struct
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

from gpumagic.cuda import torch_cuda
from gpumagic.errors import DeviceError
from gpumagic.render.units import spans
from gpumagic.system import text
from gpumagic.system.text import noun

_GLOO = "GLOO_SOCKET_IFNAME"
_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
#: Linux: ask for an interface's address.
_SIOCGIFADDR = 0x8915
#: Seconds for the other ranks to come to a barrier.
_PATIENCE = 60.0
#: The variables as they were before `join`.
_before: dict[str, str | None] = {}
#: What was prepared for the other ranks: a ``listener``, or a ``folder``; and the store's ``file``.
_meeting: dict[str, Any] = {}
_GONE = (
    "the process group's store does not answer: has rank 0 ended? %gpu dist down, then "
    "%gpu dist init makes a new group"
)


def plan(hosts: Mapping[int, str]) -> dict[int, dict[str, int]]:
    """Each engine's rank, in the order of their ids, and its rank among those of its host."""
    sizes = Counter(hosts.values())
    seen: Counter[str] = Counter()
    planned = {}
    for rank, (engine, host) in enumerate(sorted(hosts.items())):
        planned[engine] = {
            "rank": rank,
            "world_size": len(hosts),
            "local_rank": seen[host],
            "local_world_size": sizes[host],
        }
        seen[host] += 1
    return planned


def rendezvous(
    other_hosts: Sequence[str], is_master: bool = False
) -> tuple[str, int, bool, str | None]:
    """Prepare a meeting: address, port, whether NCCL could be used, and on one host a file.

    The address is the host's as the others can reach it, the port a free one. ``towards`` are the
    other hosts' names; empty if there is no other host. Where the ranks ``meets`` (at rank 0) is
    prepared too: on one host a file in a private folder, since any user of the host could read and
    write a store behind a port; on several a socket that listens on this one address, where torch
    would listen on all.

    Raises:
        DeviceError: torch, or its distributed part, is missing, or there is a group already, or no
            address is known by which another host could reach this one.
    """
    if _distributed().is_initialized():
        raise DeviceError("it is in a process group already: %gpu dist down first")
    address = _address(other_hosts)
    _close_meeting()
    listener = socket.socket()
    listener.bind((address, 0))
    port = listener.getsockname()[1]
    file = None
    if is_master and other_hosts:
        listener.listen()
        _meeting["listener"] = listener
    else:
        listener.close()
    if is_master and not other_hosts:
        _meeting["folder"] = tempfile.TemporaryDirectory(prefix="gpumagic-")
        file = str(Path(_meeting["folder"].name) / "store")
    torch = torch_cuda.require()
    usable = torch.distributed.is_nccl_available() and torch.cuda.is_available()
    return address, port, bool(usable), file


def _close_meeting() -> None:
    """Give up what `rendezvous` has prepared, as far as it has not been handed over."""
    _close_listener()
    if "folder" in _meeting:
        _meeting.pop("folder").cleanup()
    _meeting.clear()


def _close_listener() -> None:
    if "listener" in _meeting:
        _meeting.pop("listener").close()


def _check_file() -> None:
    """Raise a `DeviceError` if the store's folder is gone: torch would wait half an hour for it."""
    file = _meeting.get("file")
    if file is not None and not Path(file).parent.is_dir():
        raise DeviceError(_GONE)


def _address(other_hosts: Sequence[str]) -> str:
    """The address of the interface by which the others are reached; nothing is sent."""
    if not other_hosts:
        return "127.0.0.1"
    for host in other_hosts:
        own = _own_address(host)
        if own is not None and not own.startswith("127."):
            return own
    try:
        known = {str(each[4][0]) for each in socket.getaddrinfo(socket.gethostname(), None)}
    except OSError:
        known = set()
    for found in sorted(known):
        if not found.startswith("127.") and ":" not in found:
            return found
    raise DeviceError(
        f"{socket.gethostname()} knows no address by which {other_hosts[0]} could reach it: its "
        "name must stand for one, not for 127.0.0.1"
    )


def _own_address(towards: str) -> str | None:
    """The address of this host as ``towards`` sees it; None if that cannot be reached."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((towards, 9))
        except OSError:  # its name means nothing here
            return None
        return str(probe.getsockname()[0])


def _interface(address: str | None) -> str | None:
    """The network interface that has this address, where the system tells it."""
    if address is None or sys.platform != "linux":
        return None
    import fcntl

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[:15])
            with suppress(OSError):  # an interface without an address
                found = fcntl.ioctl(probe, _SIOCGIFADDR, request)
                if socket.inet_ntoa(found[20:24]) == address:
                    return name
    return None


def join(
    *,
    backend: str,
    master: tuple[str, int],
    file: str | None,
    rank: int,
    world_size: int,
    local_rank: int,
    local_world_size: int,
    timeout: float,
) -> str:
    """Set the variables of ``torchrun`` and join the group; the backend that it has.

    The ranks meet in ``file``, or where there is none, at ``master``.

    All get as far as `_meet`, or nobody is in a group: torch's own limit, which one rank that fails
    would let the others wait for, is half an hour.

    Raises:
        DeviceError: torch refuses, or the others have not come within ``timeout`` seconds.
    """
    distributed = _distributed()
    values = (rank, world_size, local_rank, local_world_size, *master)
    variables = dict(zip(_VARIABLES, values, strict=True))
    if _GLOO not in os.environ:
        # Gloo would ask the host's name for an address: one that others reach, on one host without
        # need, or, on several, 127.0.0.1.
        interface = _interface(_own_address(master[0]))
        variables |= {} if interface is None else {_GLOO: interface}
    for name, value in variables.items():
        _before.setdefault(name, os.environ.get(name))
        os.environ[name] = str(value)
    try:
        store = _meet(distributed, backend, file or master, rank, world_size, timeout)
        distributed.init_process_group(backend, store=store, rank=rank, world_size=world_size)
    except BaseException as error:  # of many kinds: an AssertionError for a backend that is none
        if distributed.is_initialized():
            distributed.destroy_process_group()
        _put_back()
        _close_listener()  # the file's folder stays for those that come later, until `leave`
        if isinstance(error, DeviceError) or not isinstance(error, Exception):
            raise
        raise DeviceError(f"torch refuses: {text.reason(error)}") from None
    return str(distributed.get_backend())


def _meet(
    distributed: Any,
    backend: str,
    where: str | tuple[str, int],
    rank: int,
    world_size: int,
    timeout: float,
) -> Any:
    """The ranks' store, when all of them have made a group once: a rehearsal, within the limit."""
    deadline = time.monotonic() + timeout

    def left() -> timedelta:
        return timedelta(seconds=max(deadline - time.monotonic(), 0.1))

    store: Any
    if isinstance(where, str):
        _meeting["file"] = where
        if not Path(where).parent.is_dir():  # torch would wait for it, five minutes
            raise DeviceError("the other ranks have given up")
        store = distributed.FileStore(where, world_size)
        store.set_timeout(left())
    else:
        listener = _meeting.pop("listener", None) if rank == 0 else None
        given = {} if listener is None else {"master_listen_fd": listener.detach()}
        store = distributed.TCPStore(*where, world_size, rank == 0, timeout=left(), **given)
    distributed.init_process_group(
        backend,
        store=distributed.PrefixStore("rehearsal", store),
        rank=rank,
        world_size=world_size,
        timeout=left(),
    )
    store.set(f"met/{rank}", "yes")
    store.wait([f"met/{each}" for each in range(world_size)], left())
    distributed.destroy_process_group()
    # What the group does with its store later has torch's own limit, which is for training.
    store.set_timeout(distributed.distributed_c10d.default_pg_timeout)
    return store


def leave() -> bool:
    """Leave the group, and put the variables back; whether there was a group."""
    distributed = _initialized()
    if distributed is not None:
        distributed.destroy_process_group()
    _put_back()
    _close_meeting()
    return distributed is not None


def _come_together(distributed: Any) -> None:
    """Return when all ranks are here: torch's barrier cannot be interrupted, nor name who is not.

    Raises:
        DeviceError: they do not come, or the group's store is gone.
    """
    store = distributed.distributed_c10d._get_default_store()
    if store is None:  # under MPI
        return
    try:
        _poll(store, distributed.get_rank(), range(distributed.get_world_size()))
    except DeviceError:
        raise
    except RuntimeError:
        raise DeviceError(_GONE) from None


def _poll(store: Any, rank: int, everybody: range) -> None:
    _check_file()
    turn = store.add(f"gpumagic/turns/{rank}", 1)
    keys = [f"gpumagic/{turn}/{each}" for each in everybody]
    deadline = time.monotonic() + _PATIENCE
    try:
        store.set(keys[rank], "here")
        while not store.check(keys):
            _check_file()
            late = time.monotonic() > deadline
            if late and (missing := [each for each in everybody if not store.check([keys[each]])]):
                which = f"{noun(len(missing), 'rank')} {spans(missing)}"
                raise DeviceError(f"{which} did not come to the barrier in {_PATIENCE:g} s")
            time.sleep(0.001)
    except BaseException:
        with suppress(RuntimeError, DeviceError):  # the store may be what is gone
            _check_file()
            store.delete_key(keys[rank])
            store.add(f"gpumagic/turns/{rank}", -1)
        raise


def membership() -> tuple[int, int, str] | tuple[None, None, None]:
    """The rank of this process, the group's size, and its backend; without a group, nothing."""
    distributed = _initialized()
    if distributed is None:
        return None, None, None
    return distributed.get_rank(), distributed.get_world_size(), str(distributed.get_backend())


def master() -> str | None:
    """Where the ranks have met, as far as the variables say."""
    address, port = os.environ.get("MASTER_ADDR"), os.environ.get("MASTER_PORT")
    return None if address is None or port is None else f"{address}:{port}"


def _put_back() -> None:
    for name, value in _before.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    _before.clear()


def _initialized() -> Any:
    """torch.distributed, if this process is in a group; nothing is imported."""
    distributed: Any = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return distributed


def _distributed() -> Any:
    torch = torch_cuda.require()
    if not torch.distributed.is_available():
        raise DeviceError(f"torch {torch.__version__} is built without torch.distributed")
    return torch.distributed


def barrier() -> bool:
    """Wait for the other ranks; False where there is no group.

    Raises:
        DeviceError: they have not come within `_PATIENCE` seconds.
    """
    distributed = _initialized()
    if distributed is None:
        return False
    _come_together(distributed)
    if distributed.get_backend() == "nccl":  # it would guess the device, and warn
        distributed.barrier(device_ids=[torch_cuda.require().cuda.current_device()])
    else:
        distributed.barrier()
    return True
