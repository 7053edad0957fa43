"""Find the storages of torch's allocator that can be parked, and say why the others cannot.

All tensors and storages that Python's collector lists, and from them what torch keeps in C++:
gradients, what autograd has saved for backward, the components of sparse tensors. Every allocated
block is either of one storage whose references are all known, or stays where it is.
"""

from __future__ import annotations

import gc
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from gpumagic.cuda import storages, torch_cuda
from gpumagic.cuda.storages import plain_functions, tensor_base
from gpumagic.memory.allocator_blocks import Blocks
from gpumagic.memory.referents import Rules
from gpumagic.system import introspection

#: Libraries whose objects may use the memory of a tensor that they refer to.
_LIBRARIES = {"cupy", "cupyx", "numba", "numba_cuda", "pycuda", "jax", "jaxlib", "tensorflow"}
_LIBRARIES |= {"cudf", "cuml", "rmm", "cuda", "dgl", "warp"}

_VISITED = "visited"

NO_OBJECT = "no object of Python leads to it (C++ code or a library holds it)"
ON_STREAM = f"{NO_OBJECT}, and it was allocated for a stream other than the default"
TWICE = "two storages share it, as DLPack makes them"
IN_USE = "C++ code or another library may use it (DLPack, TorchScript, views of complex numbers)"
LIBRARY = "an object of {} uses it"
FIXED = "its storage cannot be resized"
INSIDE = "its storage is a part of a larger allocation"


@dataclass
class ParkableStorage:
    """A storage whose memory can be released and allocated again."""

    storage: Any
    #: CUDA ordinal.
    device: int
    #: The handle of the stream for which it was allocated.
    stream: int
    #: Bytes of the storage, and of its block in the allocator.
    nbytes: int
    size: int


@dataclass
class FoundStorages:
    """The allocator's blocks, each either parkable or not."""

    blocks: Blocks
    parkable: list[ParkableStorage] = field(default_factory=list)
    #: The block's place in ``blocks.all``, and why it stays.
    staying: list[tuple[int, str]] = field(default_factory=list)


def find_storages(blocks: Blocks) -> FoundStorages:
    """Return which of the allocator's blocks can be parked."""
    found = FoundStorages(blocks)
    with plain_functions():
        search = _Search(blocks)
        search.run()
        streams = streams_of_blocks()
        for place, block in enumerate(blocks.all):
            reason = search.why_not(place)
            if reason == NO_OBJECT and streams.get(block.address):
                reason = ON_STREAM
            if reason is not None:
                found.staying.append((place, reason))
                continue
            storage = search.of_block[place][0]
            stream = streams.get(block.address, 0)
            found.parkable.append(
                ParkableStorage(storage, block.device, stream, storage.nbytes(), block.size)
            )
        search.forget()
    return found


def streams_of_blocks() -> dict[int, int]:
    """Return the handle of the stream for which each block was allocated, by its address."""
    found: dict[int, int] = {}
    for segment in torch_cuda.memory_snapshot():
        address = segment["address"]
        for block in segment["blocks"]:
            found[address] = segment.get("stream", 0)
            address += block["size"]
    return found


class _Search:
    """All tensors and storages that can be reached, with the references to each."""

    def __init__(self, blocks: Blocks) -> None:
        self._blocks = blocks
        self._torch: Any = torch_cuda.loaded()
        self._rules = Rules(blocks, frozenset(), {}, set())
        self._find = blocks.finder(storages=True)
        base = tensor_base()
        self._view_base = introspection.find(base, "_base").__get__
        #: By `id`: every object that was visited, which keeps it alive.
        self._seen: dict[int, Any] = {}
        #: By place of a block, its storages.
        self.of_block: dict[int, list[Any]] = {}
        #: By the storage's address: its tensors, by `id`.
        self._tensors: dict[int, dict[int, Any]] = {}
        #: By `id` of a tensor, the references from C++ that are known.
        self._known: Counter[int] = Counter()
        #: By the storage's address, the tensors in C++ that have no object in Python.
        self._hidden: Counter[int] = Counter()
        #: By `id` of a tensor, the library of an object that refers to it.
        self._libraries: dict[int, str] = {}

    def run(self) -> None:
        """Visit everything."""
        pending: list[Any] = []
        #: By the `id` of a type, what its objects are; with the types, so that each `id` stays.
        roles: dict[int, tuple[type, str]] = {}
        for thing in gc.get_objects():
            kind = type(thing)
            known = roles.get(id(kind))
            if known is None:
                known = roles[id(kind)] = (kind, self._role(kind))
            role = known[1]
            if role == _VISITED:
                pending.append(thing)
            elif role:
                self._note_library(thing, role)
        while pending:
            pending += self._visit(pending.pop())

    def _role(self, kind: type) -> str:
        """Return what objects of a type are here; "" for nothing."""
        torch = self._torch
        bases = (torch.Tensor, torch.UntypedStorage, torch.nn.Module)
        if introspection.derives(kind, *bases) or self._rules.is_node(kind):
            return _VISITED
        root = introspection.module_of(kind).partition(".")[0]
        return root if root in _LIBRARIES and root in sys.modules else ""

    def _note_library(self, thing: Any, library: str) -> None:
        for each in gc.get_referents(thing):
            if introspection.is_a(each, self._torch.Tensor):
                self._libraries[id(each)] = library

    def _visit(self, thing: Any) -> Iterator[Any]:
        """Visit an object once; yield those that it leads to."""
        if id(thing) in self._seen:
            return
        self._seen[id(thing)] = thing
        torch, kind = self._torch, type(thing)
        is_tensor = introspection.derives(kind, torch.Tensor)
        if is_tensor or introspection.derives(kind, torch.UntypedStorage):
            self._note_storage(thing, is_tensor)
        if is_tensor:
            yield from self._base(thing)
        rule = self._rules.of(kind)
        if rule is None:
            return
        # A node's saved tensors, a tensor's gradient and components are held by C++.
        in_cpp = is_tensor or self._rules.is_node(kind)
        for _, group in rule(thing, "", 0):
            for each in group:
                inner = type(each)
                if introspection.derives(inner, torch.Tensor):
                    if in_cpp:
                        self._known[id(each)] += 1
                    if is_tensor and storages.storage_of(thing) is None:
                        self._note_component(each)
                    yield each
                elif self._role(inner) == _VISITED:
                    yield each

    def _note_storage(self, thing: Any, is_tensor: bool) -> None:
        storage = storages.storage_of(thing)
        if storage is None or storage.device.type != "cuda":
            return
        place = self._find(storage)
        if place is None:
            return
        known = self.of_block.setdefault(place, [])
        if all(each._cdata != storage._cdata for each in known):
            known.append(storage)
        if is_tensor:
            self._tensors.setdefault(storage._cdata, {})[id(thing)] = thing

    def _note_component(self, component: Any) -> None:
        """Count what a sparse tensor holds itself: Python sees another tensor of the storage."""
        storage = storages.storage_of(component)
        if storage is not None:
            self._hidden[storage._cdata] += 1

    def _base(self, tensor: Any) -> Iterator[Any]:
        """Yield the base of a view, which refers to it from C++."""
        try:
            base = self._view_base(tensor)
        except Exception:  # a subclass that wraps no tensor
            return
        if base is not None:
            self._known[id(base)] += 1
            yield base

    def why_not(self, place: int) -> str | None:
        """Return why a block stays; None if it can be parked."""
        known = self.of_block.get(place, [])
        block = self._blocks.all[place]
        if not known:
            return NO_OBJECT
        if len(known) > 1:
            return TWICE
        storage = known[0]
        if storage.data_ptr() != block.address or storage.nbytes() > block.size:
            return INSIDE
        if not storage.resizable():
            return FIXED
        tensors = self._tensors.get(storage._cdata, {})
        for identity, tensor in tensors.items():
            if identity in self._libraries:
                return LIBRARY.format(self._libraries[identity])
            if tensor._use_count() > 1 + self._known[identity]:
                return IN_USE
        # One for each tensor, and one for the Python object.
        if storages.references(storage) > len(tensors) + 1 + self._hidden[storage._cdata]:
            return IN_USE
        return None

    def forget(self) -> None:
        """Drop the references to the objects that were visited."""
        self._seen.clear()
        self._tensors.clear()
        self.of_block.clear()
