"""A ``torch.distributed`` process group over the engines; runs on them, apart from `plan`."""

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
#: Linux: get an interface's address.
_SIOCGIFADDR = 0x8915
#: Seconds for the other ranks to reach a barrier.
_BARRIER_TIMEOUT = 60.0
#: The environment variables before `join`.
_variables_before: dict[str, str | None] = {}
#: Prepared for the other ranks: a ``listener``, or a ``folder``; and the store's ``file``.
_rendezvous: dict[str, Any] = {}
_STORE_GONE = (
    "the process group's store does not answer: has rank 0 ended? %gpu dist down, then "
    "%gpu dist init makes a new group"
)


def plan(hosts: Mapping[int, str]) -> dict[int, dict[str, int]]:
    """Return the ranks of each engine, in the order of their ids, in all and on its host."""
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
    """Prepare a rendezvous: return the address, a free port, whether NCCL can be used, and a file.

    The address is one by which the ``other_hosts`` reach this one. On the master (rank 0) the store
    is prepared too: on one host a file in a private directory, since any user of the host could
    read and write a store behind a port; on several a socket that listens on this one address,
    where torch would listen on all.

    Raises:
        DeviceError: torch, or its distributed part, is missing, or there is a group already, or no
            address is known by which another host could reach this one.
    """
    if _distributed().is_initialized():
        raise DeviceError("it is in a process group already: %gpu dist down first")
    address = _address(other_hosts)
    close_rendezvous()
    listener = socket.socket()
    listener.bind((address, 0))
    port = listener.getsockname()[1]
    file = None
    if is_master and other_hosts:
        listener.listen()
        _rendezvous["listener"] = listener
    else:
        listener.close()
    if is_master and not other_hosts:
        _rendezvous["folder"] = tempfile.TemporaryDirectory(prefix="gpumagic-")
        file = str(Path(_rendezvous["folder"].name) / "store")
    torch = torch_cuda.require()
    usable = torch.distributed.is_nccl_available() and torch.cuda.is_available()
    return address, port, bool(usable), file


def close_rendezvous() -> bool:
    """Close what `rendezvous` has prepared and no store has taken over; return whether it had."""
    had = bool(_rendezvous)
    _close_listener()
    if "folder" in _rendezvous:
        _rendezvous.pop("folder").cleanup()
    _rendezvous.clear()
    return had


def _close_listener() -> None:
    if "listener" in _rendezvous:
        _rendezvous.pop("listener").close()


def _check_file() -> None:
    """Raise a `DeviceError` if the store's directory is gone: torch would wait half an hour."""
    file = _rendezvous.get("file")
    if file is not None and not Path(file).parent.is_dir():
        raise DeviceError(_STORE_GONE)


def _address(other_hosts: Sequence[str]) -> str:
    """Return the address of the interface to the other hosts; nothing is sent."""
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
        "name must resolve to one, not to 127.0.0.1"
    )


def _own_address(other_host: str) -> str | None:
    """Return the address of this host as another sees it; None if that cannot be reached."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((other_host, 9))
        except OSError:  # its name cannot be resolved here
            return None
        return str(probe.getsockname()[0])


def _interface(address: str | None) -> str | None:
    """Return the network interface that has this address; None where that is not known."""
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
    """Set the variables of ``torchrun``, join the process group, and return its backend.

    The store is ``file``, or where there is none, at ``master``. All ranks finish `_store`, or none
    is in a group: if one rank failed, the others would wait for torch's own timeout, half an hour.

    Raises:
        DeviceError: torch raises, or the others have not joined within ``timeout`` seconds.
    """
    distributed = _distributed()
    values = (rank, world_size, local_rank, local_world_size, *master)
    variables = dict(zip(_VARIABLES, values, strict=True))
    if _GLOO not in os.environ:
        # Gloo would resolve the host's name: to an address that others reach, which one host does
        # not need, or, on several hosts, to 127.0.0.1.
        interface = _interface(_own_address(master[0]))
        variables |= {} if interface is None else {_GLOO: interface}
    for name, value in variables.items():
        _variables_before.setdefault(name, os.environ.get(name))
        os.environ[name] = str(value)
    try:
        store = _store(distributed, backend, file or master, rank, world_size, timeout)
        distributed.init_process_group(backend, store=store, rank=rank, world_size=world_size)
    except BaseException as error:  # of many types: an AssertionError for an unknown backend
        if distributed.is_initialized():
            distributed.destroy_process_group()
        _restore_variables()
        _close_listener()  # the file's directory stays until `close_rendezvous`, for late ranks
        if isinstance(error, DeviceError) or not isinstance(error, Exception):
            raise
        raise DeviceError(f"torch refuses: {text.reason(error)}") from None
    return str(distributed.get_backend())


def _store(
    distributed: Any,
    backend: str,
    where: str | tuple[str, int],
    rank: int,
    world_size: int,
    timeout: float,
) -> Any:
    """Return the store, once all ranks have made a first group with it within the timeout."""
    deadline = time.monotonic() + timeout

    def remaining() -> timedelta:
        return timedelta(seconds=max(deadline - time.monotonic(), 0.1))

    store: Any
    if isinstance(where, str):
        _rendezvous["file"] = where
        if not Path(where).parent.is_dir():  # torch would wait for it, five minutes
            raise DeviceError("the other ranks have given up")
        store = distributed.FileStore(where, world_size)
        store.set_timeout(remaining())
    else:
        listener = _rendezvous.pop("listener", None) if rank == 0 else None
        given: dict[str, Any] = {}
        if listener is not None:
            given["master_listen_fd"] = listener.detach()
            # Before torch 2.8 libuv takes no socket that listens already.
            given["use_libuv"] = torch_cuda.require().__version__ >= (2, 8)
        store = distributed.TCPStore(*where, world_size, rank == 0, timeout=remaining(), **given)
    distributed.init_process_group(
        backend,
        store=distributed.PrefixStore("rehearsal", store),
        rank=rank,
        world_size=world_size,
        timeout=remaining(),
    )
    store.set(f"joined/{rank}", "yes")
    store.wait([f"joined/{each}" for each in range(world_size)], remaining())
    distributed.destroy_process_group()
    # From now on the store has torch's own timeout, which is for training.
    store.set_timeout(distributed.distributed_c10d.default_pg_timeout)
    return store


def leave() -> bool:
    """Leave the group, restore the variables, and return whether there was a group.

    The rendezvous stays until `close_rendezvous`: a rank that is still leaving writes to its file,
    and torch would wait half an hour for a directory that is gone.
    """
    distributed = _initialized()
    if distributed is not None:
        distributed.destroy_process_group()
    _restore_variables()
    return distributed is not None


def _wait_for_ranks(distributed: Any) -> None:
    """Wait until all ranks are here: torch's barrier cannot be interrupted, nor name a rank.

    Raises:
        DeviceError: some do not reach it, or the group's store is gone.
    """
    store = distributed.distributed_c10d._get_default_store()
    if store is None:  # under MPI
        return
    try:
        _poll_ranks(store, distributed.get_rank(), range(distributed.get_world_size()))
    except DeviceError:
        raise
    except RuntimeError:
        raise DeviceError(_STORE_GONE) from None


def _poll_ranks(store: Any, rank: int, ranks: range) -> None:
    _check_file()
    turn = store.add(f"gpumagic/turns/{rank}", 1)
    keys = [f"gpumagic/{turn}/{each}" for each in ranks]
    deadline = time.monotonic() + _BARRIER_TIMEOUT
    try:
        store.set(keys[rank], "here")
        while not store.check(keys):
            _check_file()
            late = time.monotonic() > deadline
            if late and (missing := [each for each in ranks if not store.check([keys[each]])]):
                which = f"{noun(len(missing), 'rank')} {spans(missing)}"
                raise DeviceError(f"{which} did not reach the barrier in {_BARRIER_TIMEOUT:g} s")
            time.sleep(0.001)
    except BaseException:
        with suppress(RuntimeError, DeviceError):  # the store may be what is gone
            _check_file()
            store.delete_key(keys[rank])
            store.add(f"gpumagic/turns/{rank}", -1)
        raise


def membership() -> tuple[int, int, str] | tuple[None, None, None]:
    """Return the rank of this process, the group's size and its backend; None without a group."""
    distributed = _initialized()
    if distributed is None:
        return None, None, None
    return distributed.get_rank(), distributed.get_world_size(), str(distributed.get_backend())


def master() -> str | None:
    """Return ``MASTER_ADDR:MASTER_PORT``; None if they are not set."""
    address, port = os.environ.get("MASTER_ADDR"), os.environ.get("MASTER_PORT")
    return None if address is None or port is None else f"{address}:{port}"


def _restore_variables() -> None:
    for name, value in _variables_before.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    _variables_before.clear()


def _initialized() -> Any:
    """Return torch.distributed, if this process is in a group; nothing is imported."""
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
    """Wait for the other ranks, and return True; False where there is no group.

    Raises:
        DeviceError: they have not reached it within `_BARRIER_TIMEOUT` seconds.
    """
    distributed = _initialized()
    if distributed is None:
        return False
    _wait_for_ranks(distributed)
    if distributed.get_backend() == "nccl":  # it would guess the device, and warn
        distributed.barrier(device_ids=[torch_cuda.require().cuda.current_device()])
    else:
        distributed.barrier()
    return True
