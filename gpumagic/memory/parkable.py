"""Find the storages whose memory can be taken: all references to them must be known.

A raw pointer in C++ code, or in another library, would be used after the memory is gone. So every
tensor and storage of the process is looked at, and the references to each are counted.
"""

from __future__ import annotations

import gc
from collections import Counter
from typing import Any

from gpumagic.cuda import storages, torch_cuda
from gpumagic.cuda.storages import plain_functions
from gpumagic.memory.blocks import Block, Blocks
from gpumagic.memory.torch_graph import Rule, TorchGraph
from gpumagic.system import introspection

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
