"""What can be parked: storages to which all references are known, and when parking is refused.

A raw pointer in C++ code, or in another library, would be used after the memory is gone. So every
tensor and storage of the process is looked at, and the references to each are counted. Refused are
fixed addresses, and code of the user's that runs meanwhile.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from traceback import walk_stack
from types import CodeType
from typing import Any

from gpumagic.cells import tracebacks
from gpumagic.cells.compile import cell_of
from gpumagic.cuda import graphs, storages, torch_cuda
from gpumagic.cuda.storages import plain_functions
from gpumagic.errors import DeviceError
from gpumagic.memory.torch_memory import Block, Blocks, Rule, TorchGraph
from gpumagic.render.units import bytes_
from gpumagic.system import introspection, system_files

#: Libraries whose objects may use a tensor's memory by its address.
_LIBRARIES = {"cupy", "cupyx", "numba", "numba_cuda", "pycuda", "jax", "jaxlib", "tensorflow"}
_LIBRARIES |= {"cudf", "cuml", "rmm", "cuda", "dgl", "warp"}
#: Why memory stays where it is.
NO_OBJECT = "no object of Python leads to it"
IN_USE = "C++ code, another library or another process may use it"


def parkable(blocks: Blocks) -> tuple[list[tuple[Any, Block]], dict[int, dict[str, int]]]:
    """Return the storages that can be parked, each with its block, and what stays.

    The latter are bytes by CUDA ordinal and reason; both add up to the allocated bytes.
    """
    with plain_functions():
        search = _Search()
        search.run()
        chosen: list[tuple[Any, Block]] = []
        staying: dict[int, dict[str, int]] = {ordinal: {} for ordinal in blocks.allocated}
        for block in blocks.all:
            reason = search.why_not(block)
            if reason is None:
                chosen.append((search.storages[block.address][0], block))
            else:
                of_device = staying.setdefault(block.device, {})
                of_device[reason] = of_device.get(reason, 0) + block.size
    return chosen, staying


class _Search:
    """All tensors and storages of the process, with the references to each."""

    def __init__(self) -> None:
        self._torch: Any = torch_cuda.loaded()
        self._graph = TorchGraph()
        #: By address, the storages that begin there.
        self.storages: dict[int, list[Any]] = {}
        #: By a storage's ``_cdata``, its tensors.
        self._tensors: dict[int, list[Any]] = {}
        #: By id, the objects that were visited, and the references from C++ that were seen.
        self._seen: dict[int, Any] = {}
        self._in_cpp: Counter[int] = Counter()
        #: By a storage's ``_cdata``, its tensors that have no object in Python.
        self._hidden: Counter[int] = Counter()
        #: By id, what objects of other libraries refer to.
        self._foreign: set[int] = set()
        #: By the id of a type; with the type, so that the id stays its own.
        self._rules: dict[int, tuple[type, Rule | None]] = {}
        self._shared = storages.shared_with_processes()

    def run(self) -> None:
        """Visit everything."""
        pending = [each for each in gc.get_objects() if self._rule(type(each)) is not None]
        while pending:
            thing = pending.pop()
            rule = self._rule(type(thing))
            if rule is None or id(thing) in self._seen:
                continue
            self._seen[id(thing)] = thing
            self._note_storage(thing)
            is_sparse = self._graph.is_tensor(type(thing)) and storages.storage_of(thing) is None
            for role, each in rule(thing):
                self._in_cpp[id(each)] += 1
                if is_sparse and not role:
                    self._note_component(each)
                pending.append(each)

    def _rule(self, kind: type) -> Rule | None:
        """Return what an object of a type leads to in C++; None if it is not to be visited."""
        known = self._rules.get(id(kind))
        if known is None:
            rule = self._graph.rule(kind)
            if rule is None and self._graph.is_storage(kind):
                rule = _nothing
            if rule is None and introspection.module_of(kind).partition(".")[0] in _LIBRARIES:
                rule = self._note_foreign
            known = self._rules[id(kind)] = (kind, rule)
        return known[1]

    def _note_foreign(self, thing: Any) -> tuple[()]:
        self._foreign.update(map(id, gc.get_referents(thing)))
        return ()

    def _note_storage(self, thing: Any) -> None:
        is_storage = self._graph.is_storage(type(thing))
        address = self._graph.address(thing, storage=is_storage)
        if not address:
            return
        storage = storages.storage_of(thing)
        known = self.storages.setdefault(address, [])
        if all(each._cdata != storage._cdata for each in known):
            known.append(storage)
        if not is_storage:
            self._tensors.setdefault(storage._cdata, []).append(thing)

    def _note_component(self, component: Any) -> None:
        """Count what a sparse tensor holds itself: Python sees another tensor of the storage."""
        storage = storages.storage_of(component)
        if storage is not None:
            self._hidden[storage._cdata] += 1

    def why_not(self, block: Block) -> str | None:
        """Return why a block stays; None if all references to its one storage are known."""
        known = self.storages.get(block.address, [])
        if not known:
            return NO_OBJECT
        storage, tensors = known[0], self._tensors.get(known[0]._cdata, [])
        uses = self._torch._C.TensorBase._use_count
        if (
            len(known) > 1
            or not storages.has_memory(storage)
            or storage.nbytes() > block.size
            or storage._cdata in self._shared
            # One for each tensor, and one for the Python object.
            or storages.references(storage) > len(tensors) + 1 + self._hidden[storage._cdata]
            or any(id(t) in self._foreign or uses(t) > 1 + self._in_cpp[id(t)] for t in tensors)
        ):
            return IN_USE
        return None


def _nothing(thing: Any) -> tuple[()]:
    return ()


# --- when it is refused ---------------------------------------------------------------------------


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
    available = system_files.available_memory()
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
        for each, _ in walk_stack(frame):
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
