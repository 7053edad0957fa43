"""What torch knows of its memory: the allocator's blocks and history, and what C++ keeps.

Gradients and autograd's graphs, which Python's collector does not know, are read in C alone: no
hook, property or override of a subclass is run, and what is saved for backward is not unpacked.

torch's own defaults keep all events of the history, with C++ stacks; here the newest events are
kept, with the Python stacks of allocations. The cell of an allocation is the outermost frame of its
stack that is a cell's own code. Where there is none (autograd's threads have no Python stack, or
the memory is older than the recording), the cell is not known.
"""

from __future__ import annotations

import types
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from gpumagic.cells.every_cell import first_line
from gpumagic.cuda import torch_cuda
from gpumagic.cuda.storages import storage_address
from gpumagic.errors import DeviceError
from gpumagic.results.allocator import HistoryState, SnapshotFile
from gpumagic.results.holders import CellHolding, CellHoldings
from gpumagic.system import introspection, text
from gpumagic.system.shell import Shell
from gpumagic.system.writing import replacing

if TYPE_CHECKING:
    from torch import Tensor

# --- the blocks -----------------------------------------------------------------------------------


class UnreadableError(DeviceError):
    """The allocator lists no blocks."""


class Block(NamedTuple):
    """An allocation. Bytes."""

    device: int
    address: int
    #: As it was requested, and as the allocator has rounded it.
    requested: int
    size: int


class Blocks:
    """The allocated blocks of all devices in use, in the order of addresses."""

    def __init__(self) -> None:
        """Read them now.

        Raises:
            UnreadableError: torch uses another allocator than its native one.
        """
        if torch_cuda.allocator_backend() != "native" or torch_cuda.uncounted():
            why = "torch's allocator lists no blocks; only its native one does"
            raise UnreadableError(torch_cuda.uncounted() or why)
        #: Whether the list and the counters agree: no thread has allocated in between.
        self.consistent = False
        for _ in range(3):
            try:
                self._read()
            except RuntimeError as error:
                shown = text.reason(error)
                raise UnreadableError(f"the allocator cannot be read: {shown}") from None
            if self.consistent:
                break
        self.all.sort(key=lambda block: block.address)
        self._addresses = [block.address for block in self.all]

    def _read(self) -> None:
        self.all: list[Block] = []
        #: By CUDA ordinal, the allocated bytes by the allocator's counters.
        self.allocated: dict[int, int] = {}
        for device, block in torch_cuda.allocated_blocks():
            size = block["size"]
            requested = block.get("requested_size", size)
            self.all.append(Block(device, block["address"], requested, size))
        for ordinal in torch_cuda.contexts():
            self.allocated[ordinal], _ = torch_cuda.memory_held(ordinal)
        found = dict.fromkeys(self.allocated, 0)
        for each in self.all:
            found[each.device] = found.get(each.device, 0) + each.size
        self.consistent = found == self.allocated

    def find(self, address: int) -> int | None:
        """Return the place in `all` of the block that an address lies in, or None."""
        place = bisect_right(self._addresses, address) - 1
        # Another library's pool, or DLPack, may begin inside.
        if place >= 0 and address < self.all[place].address + self.all[place].size:
            return place
        return None


# --- gradients and graphs -------------------------------------------------------------------------


GRADIENTS, GRAPH = "gradients", "autograd graph"

#: The methods that return the parts of sparse tensors: some for each layout.
_COMPONENTS = (
    "_indices",
    "_values",
    "crow_indices",
    "col_indices",
    "ccol_indices",
    "row_indices",
    "values",
)

#: Returns what an object keeps in C++: pairs of a role and an object.
Rule = Callable[[Any], Iterable[tuple[str, Any]]]


class TorchGraph:
    """The objects in C++ that tensors, scripted modules and autograd's nodes lead to."""

    def __init__(self) -> None:
        self._torch = torch_cuda.module()
        self._base = self._torch._C.TensorBase
        self._saved = getattr(self._torch._C._autograd, "SavedTensor", None)
        #: Whether this torch says what autograd has saved for backward.
        self.knows_saved = hasattr(self._saved, "data")
        self._address = storage_address()
        self._get = {
            name: introspection.find(self._base, name).__get__
            for name in ("grad_fn", "_grad", "retains_grad", "_base", "layout")
        }
        #: By the id of a node's type, the type (so that the id stays its own) and its fields.
        self._fields: dict[int, tuple[type, list[str]]] = {}

    def rule(self, kind: type) -> Rule | None:
        """Return the function for objects of a type; None where they keep nothing in C++."""
        if self.is_tensor(kind):
            return self._of_tensor
        if introspection.derives(kind, self._torch._C.ScriptModule):
            return self._of_script
        return self._of_node if self.is_node(kind) else None

    def is_tensor(self, kind: type) -> bool:
        """Return whether a type is one of tensors."""
        return introspection.derives(kind, self._torch.Tensor)

    def is_storage(self, kind: type) -> bool:
        """Return whether a type is one of storages of bytes."""
        return introspection.derives(kind, self._torch.UntypedStorage)

    def is_node(self, kind: type) -> bool:
        """Return whether a type is one of autograd's nodes."""
        return type(introspection.find(kind, "next_functions")) is types.GetSetDescriptorType

    def address(self, thing: Any, *, storage: bool) -> int:
        """Return where the storage of a tensor, or a ``storage``, begins; 0 without memory."""
        try:
            return cast(int, thing.data_ptr()) if storage else self._address(thing)
        except Exception:  # sparse, a subclass that wraps others
            return 0

    def _of_tensor(self, tensor: Tensor) -> list[tuple[str, Any]]:
        get = self._get
        try:
            node, base = get["grad_fn"](tensor), get["_base"](tensor)
            # torch warns where the gradient of another tensor than a leaf is read.
            quiet = node is None or get["retains_grad"](tensor)
            gradient = get["_grad"](tensor) if quiet else None
            found = [(GRADIENTS, gradient), (GRAPH, node), ("", base)]
            if get["layout"](tensor) is not self._torch.strided:
                found += [("", part) for part in self._components(tensor)]
        except Exception:  # a subclass without a tensor's data
            return []
        return [each for each in found if each[1] is not None]

    def _components(self, tensor: Tensor) -> Iterator[Any]:
        """Yield the parts of a sparse tensor."""
        for name in _COMPONENTS:
            with suppress(RuntimeError):  # of another layout
                yield getattr(self._base, name)(tensor)

    def _of_script(self, module: object) -> Iterable[tuple[str, Any]]:
        inside = self._torch._C
        for kind in (inside.ParameterDict, inside.BufferDict):
            yield from (("", tensor) for _, tensor in kind(module).items())
        for _, below in inside.ModuleDict(module).items():
            yield from self._of_script(below)

    def _of_node(self, node: object) -> list[tuple[str, Any]]:
        """Return the next nodes, and what is saved for backward."""
        found = [below for below, _ in self._read(node, "next_functions") or ()]
        for name in self._names(type(node)):
            saved = self._read(node, name)
            for each in saved if type(saved) in (tuple, list) else (saved,):
                if type(each) is not self._saved:
                    found.append(each)
                elif self.knows_saved:
                    found += [each.data, each.unpack_hook]
        return [(GRAPH, each) for each in found if each is not None]

    def _names(self, kind: type) -> list[str]:
        known = self._fields.get(id(kind))
        if known is None:
            bases = introspection.mro(kind)
            defined = {name for base in bases for name in introspection.class_attributes(base)}
            # "variable": the leaf whose gradient is summed up in the node.
            names = [name for name in defined if name[:11] == "_raw_saved_" or name == "variable"]
            known = self._fields[id(kind)] = (kind, names)
        return known[1]

    @staticmethod
    def _read(node: object, name: str) -> Any:
        try:
            return introspection.slot(node, name)
        except (RuntimeError, AttributeError):  # freed by backward
            return None


# --- the history ----------------------------------------------------------------------------------


#: The events kept on each device: up to some 100 MiB of host memory.
_ENTRIES = 100_000
#: What allocations without a known cell are called, and what that means.
_UNKNOWN = "not known"
_MEANS = (
    f"{_UNKNOWN}: allocated by another thread (gradients: by autograd's), or before the recording"
)


class History:
    """Whether the allocator's history is recorded, and by whom."""

    def __init__(self) -> None:
        self._own = False

    def state(self, message: str = "") -> HistoryState:
        """Return whether the history is recorded now."""
        return HistoryState(torch_cuda.history_is_recorded(), message)

    def on(self) -> HistoryState:
        """Begin to record; a history that is recorded already goes on as it is.

        Raises:
            DeviceError: CUDA is not in use yet, or its allocator has no history.
        """
        _require()
        if self.state().recording:
            by = "" if self._own else ", but not by %gpumem"
            return self.state(f"It is recorded already{by}.")
        with _readable():
            try:
                _record("all", context="alloc", stacks="python", max_entries=_ENTRIES)
            except KeyboardInterrupt:  # it may record already
                _record(None)
                raise
        self._own = True
        return self.state("Recording begins.")

    def off(self) -> HistoryState:
        """Stop recording, also where other code began it, and drop what was recorded."""
        recording, self._own = self.state().recording, False
        if not recording:
            return self.state()
        _record(None)
        return self.state("Recording has ended; what was recorded is gone.")

    def release(self) -> None:
        """Undo `on`; a history that other code began goes on."""
        if self._own:
            self.off()


def _record(enabled: str | None, **options: object) -> None:
    """Start or end torch's recording; either begins anew or drops what was recorded."""
    torch_cuda.module().cuda.memory._record_memory_history(enabled, **options)


def live_by_cell(shell: Shell) -> CellHoldings:
    """Return live bytes by the cell of ``shell`` that allocated them.

    Raises:
        DeviceError: no history is recorded.
    """
    _require()
    if not torch_cuda.history_is_recorded():
        raise DeviceError("no history is recorded; begin with: %gpumem record on")
    numbers: Mapping[str, int] = getattr(shell.compile, "_filename_map", {})
    sources: Sequence[str] = shell.history_manager.input_hist_raw
    sizes: dict[int, dict[int | None, list[int]]] = {}
    with _readable():
        for device, block in torch_cuda.allocated_blocks():
            number = _cell(block.get("frames") or (), numbers)
            sizes.setdefault(device, {}).setdefault(number, []).append(block["size"])
    notes = (_MEANS,) if any(None in held for held in sizes.values()) else ()
    return CellHoldings(
        {
            ordinal: tuple(
                CellHolding(number, _source(number, sources), sum(blocks), len(blocks))
                for number, blocks in sorted(held.items(), key=lambda each: -sum(each[1]))
            )
            for ordinal, held in sorted(sizes.items())
        },
        notes,
    )


def _cell(frames: Sequence[Mapping[str, Any]], numbers: Mapping[str, int]) -> int | None:
    """Return the cell whose code is outermost in a stack, given innermost frame first."""
    for frame in reversed(frames):
        if frame["name"].startswith(("<module>", "<cell line")):
            number = numbers.get(frame["filename"])
            if number:
                return number
    return None


def _source(number: int | None, sources: Sequence[str]) -> str:
    if number is None:
        return _UNKNOWN
    return first_line(sources[number]) if number < len(sources) else ""


def write_snapshot(path: Path) -> SnapshotFile:
    """Write the allocator's snapshot, as torch's memory_viz reads it.

    Raises:
        DeviceError: CUDA is not in use, or its allocator takes no snapshots.
        SpecError: the file cannot be written.
    """
    _require()
    with replacing(path) as made:
        with _readable():
            torch_cuda.module().cuda.memory._dump_snapshot(str(made))
        size = made.stat().st_size
    return SnapshotFile(str(path), size, torch_cuda.history_is_recorded())


def _require() -> None:
    """Refuse where the allocator is not there: to ask it would initialise CUDA.

    Raises:
        DeviceError: CUDA is not in use.
    """
    if not torch_cuda.initialized():
        raise DeviceError(
            "CUDA is not in use yet, so torch has no allocator to ask: write this after the first "
            "tensor on the GPU"
        )
    if why := torch_cuda.uncounted():
        raise DeviceError(f"there is nothing to ask: {why}")


@contextmanager
def _readable() -> Iterator[None]:
    """Turn the error of an allocator that has no history into a `DeviceError`."""
    try:
        yield
    except RuntimeError as error:
        raise DeviceError(f"the allocator in use has no history: {text.reason(error)}") from None
