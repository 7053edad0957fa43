"""What parking is refused for: the state of the process, threads, storages, host memory."""

from __future__ import annotations

import gc
import sys
import threading
from typing import Any

from gpumagic.cells import tracebacks
from gpumagic.cuda import allocator, graph_capture, storages, torch_cuda
from gpumagic.errors import DeviceError
from gpumagic.memory.other_references import other_threads
from gpumagic.memory.parkable_storages import FoundStorages
from gpumagic.memory.snapshot import read_segments
from gpumagic.render.units import bytes_
from gpumagic.system import host_memory

#: Of the host memory that is available, parking leaves at least this part.
_LEFT = 0.05
#: Pinned memory cannot be swapped: no more than this part of what is available.
_PINNED = 0.5
_GRAPH = "a CUDA graph is captured, and its addresses are fixed; delete it first"
_POOL = "a torch.cuda.MemPool holds memory; delete it first"


def refuse(reason: str) -> DeviceError:
    """Return the error that says why nothing was parked."""
    return DeviceError(f"nothing was parked: {reason}")


def check_process(shell: Any = None) -> None:
    """Refuse what makes parking unsafe in this process.

    Raises:
        DeviceError: with the reason and what to do.
    """
    torch: Any = torch_cuda.loaded()
    if torch_cuda.in_bad_fork():
        raise refuse("this is a fork of a process that uses CUDA; only that one can park")
    backend = torch_cuda.allocator_backend()
    if backend != "native":
        raise refuse(f"torch's allocator is {backend}; only its native one can be parked")
    if not storages.can_take_memory():
        raise refuse(
            f"torch {torch.__version__} cannot guard parked memory against use; torch 2.12 can"
        )
    _check_graphs()
    _check_nccl()
    modes = storages.active_modes()
    if modes:
        raise refuse(f"{modes[0]} is active; park outside of its with block")
    _check_threads(shell)


def _check_graphs() -> None:
    if graph_capture.under_way(torch_cuda.contexts()):
        raise refuse("a CUDA graph is being captured; park after it")
    if allocator.captured_graphs():
        gc.collect()  # one that the user has deleted may be in a cycle
        if allocator.captured_graphs():
            raise refuse(_GRAPH)
    for device, pool in {(each.device, each.pool) for each in read_segments() if each.private}:
        if allocator.is_used(device, pool):
            raise refuse(_GRAPH if pool[0] else _POOL)


#: The module of the thread that copies a DataLoader's batches to pinned memory.
_PINS = "torch.utils.data._utils.pin_memory"


def _check_nccl() -> None:
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return
    groups = sys.modules["torch.distributed.distributed_c10d"]._world.pg_map.values()
    if any("nccl" in str(backend) for backend, _ in groups):
        raise refuse(
            "a process group of NCCL is open, which may have registered memory; "
            "torch.distributed.destroy_process_group() closes it"
        )


def _check_threads(shell: Any) -> None:
    """Refuse while another thread runs code of the user's, or torch's in Python."""
    cells = getattr(getattr(shell, "compile", None), "_filename_map", {})

    def cell_of(filename: str) -> int | None:
        number = cells.get(filename)
        return number if isinstance(number, int) else None

    for thread in threading.enumerate():
        # It waits in the standard library, and will run what it was given.
        if isinstance(thread, threading.Timer) and not thread.finished.is_set():
            called = getattr(thread.function, "__code__", None)
            if called is None or tracebacks.is_users(called.co_filename, cell_of):
                raise refuse(f"{thread.name} is a timer that may use the GPU; cancel it first")
    for name, stack in other_threads():
        for frame in stack:
            file = frame.f_code.co_filename
            if frame.f_globals.get("__name__") == _PINS:
                raise refuse(
                    "a DataLoader with pin_memory=True is read, whose thread uses the GPU; finish "
                    "the loop or delete the iterator first"
                )
            if tracebacks.is_users(file, cell_of) or _is_torchs(frame):
                where = tracebacks.described(frame, frame.f_lineno, cell_of)
                raise refuse(f"{name} is in {where}, and may use the GPU; end it first")


def _is_torchs(frame: Any) -> bool:
    name = frame.f_globals.get("__name__")
    if type(name) is not str or name.partition(".")[0] != "torch":
        return False
    # The pool that compiles kernels in other processes waits there for ever.
    return not name.startswith("torch._inductor.compile_worker")


def check_storages(found: FoundStorages) -> None:
    """Refuse storages that another process uses.

    Raises:
        DeviceError: there is one.
    """
    shared = storages.shared_with_processes()
    if any(each.storage._cdata in shared for each in found.parkable):
        raise refuse("another process uses tensors of this one (torch.multiprocessing); end it")


def check_host(needed: int) -> bool:
    """Return whether the copies may be in pinned memory.

    Raises:
        DeviceError: the host has too little memory for ``needed`` bytes.
    """
    available = host_memory.available()
    if needed > available * (1 - _LEFT):
        raise refuse(
            f"{bytes_(needed)} of GPU memory do not fit into the host memory that is available "
            f"({bytes_(available)}); %gpumem free NAMES frees what you do not need"
        )
    return needed <= available * _PINNED
