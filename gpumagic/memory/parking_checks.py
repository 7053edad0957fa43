"""What parking is refused for: fixed addresses, and code of the user's that runs meanwhile."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Iterator
from types import CodeType
from typing import Any

from gpumagic.cells import tracebacks
from gpumagic.cells.compile import cell_of
from gpumagic.cuda import graphs, storages, torch_cuda
from gpumagic.errors import DeviceError
from gpumagic.memory.blocks import Blocks
from gpumagic.render.units import bytes_
from gpumagic.system import host_memory

#: Of the host memory that is available, parking leaves at least this part.
_LEFT = 0.05


def refuse(reason: str) -> DeviceError:
    """Return the error that says why nothing was parked."""
    return DeviceError(f"nothing was parked: {reason}")


def check_process(shell: Any = None, *, idle: bool = False) -> None:
    """Refuse what makes parking unsafe in this process; ``idle`` is to say that no cell runs.

    Raises:
        DeviceError: with the reason and what to do.
    """
    if torch_cuda.in_bad_fork():
        raise refuse("this is a fork of a process that uses CUDA; only that one can park")
    if torch_cuda.allocator_backend() != "native" or not storages.can_guard():
        raise refuse("it needs torch 2.12 or newer, and torch's native allocator")
    if graphs.under_way(torch_cuda.contexts()):
        raise refuse("a CUDA graph is being captured; park after it")
    if _has_nccl():
        raise refuse(
            "a process group of NCCL may have registered memory; "
            "torch.distributed.destroy_process_group() closes it"
        )
    busy = next(_running(shell, idle), None)
    if busy is not None:
        raise refuse(f"{busy} may use the GPU; end it first")


def check_addresses(blocks: Blocks) -> None:
    """Refuse memory whose addresses are fixed; the allocator's cache is empty.

    Raises:
        DeviceError: there is a CUDA graph, or a pool.
    """
    if blocks.private or graphs.captured():
        raise refuse(
            "a CUDA graph or a MemPool has fixed addresses; delete it, and the tensors made in it"
        )


def check_host(needed: int) -> None:
    """Refuse what does not fit into host memory.

    Raises:
        DeviceError: the host has too little memory for ``needed`` bytes.
    """
    available = host_memory.available()
    if needed > available * (1 - _LEFT):
        raise refuse(
            f"{bytes_(needed)} of GPU memory do not fit into the host memory that is available "
            f"({bytes_(available)}); %gpumem free NAMES frees what you do not need"
        )


def _has_nccl() -> bool:
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return False
    groups = sys.modules["torch.distributed.distributed_c10d"]._world.pg_map.values()
    return any("nccl" in str(backend) for backend, _ in groups)


def _running(shell: Any, idle: bool) -> Iterator[str]:
    """Yield the threads, timers and tasks that run, or will run, the user's code."""

    def number(file: str) -> int | None:
        return None if shell is None else cell_of(shell, file)

    def is_users(code: CodeType | None) -> bool:
        return code is not None and tracebacks.is_users(code.co_filename, number)

    threads = {thread.ident: thread for thread in threading.enumerate()}
    for ident, frame in sys._current_frames().items():
        thread = threads.get(ident)
        name = "unknown" if thread is None else thread.name
        if isinstance(thread, threading.Timer) and not thread.finished.is_set():
            # It waits in the standard library, and will run what it was given.
            code = getattr(thread.function, "__code__", None)
            if is_users(code):
                yield f"the timer {name}"
        for each in tracebacks.stack(frame):
            if ident == threading.get_ident():
                # A cell may run the event loop itself. Below it is what has started the kernel.
                if idle and number(each.f_code.co_filename) is not None:
                    yield "the cell that runs"
            elif is_users(each.f_code) or _is_torchs(each.f_globals.get("__name__")):
                yield f"the thread {name}"
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        return
    for task in asyncio.all_tasks(loop) - {asyncio.current_task()}:
        running: Any = task.get_coro()
        while running is not None:
            if is_users(getattr(running, "cr_code", None)):
                yield f"the task {task.get_name()}"
            running = getattr(running, "cr_await", None)
    for handle in getattr(loop, "_scheduled", ()):
        if not handle.cancelled() and is_users(getattr(handle._callback, "__code__", None)):
            yield "a callback of the event loop"


def _is_torchs(module: Any) -> bool:
    """Return whether a module is torch's; not the pool that waits for compiling processes."""
    name = module if type(module) is str else ""
    return name.startswith("torch.") and not name.startswith("torch._inductor.compile_worker")
