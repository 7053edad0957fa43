"""What holds GPU memory, to the byte: the blocks that each variable leads to."""

from __future__ import annotations

import builtins
import sys
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpumagic.cells import tracebacks
from gpumagic.cuda import failure, torch_cuda
from gpumagic.memory.allocator_blocks import Blocks, UnreadableError
from gpumagic.memory.heap_scan import scanned, summed
from gpumagic.memory.notebook_references import LAST, LOCAL, NotebookReferences
from gpumagic.memory.object_graph import Root, Walked, bits, walk
from gpumagic.memory.other_references import KINDS, OtherReferences, finalized
from gpumagic.memory.report import uncounted
from gpumagic.memory.snapshot import Block
from gpumagic.results import DeviceHolders, Holder, Holders, Site
from gpumagic.system import introspection

#: The displayed name of references that are counted but not found.
ELSEWHERE = "an unknown reference"

INEXACT = (
    "this allocator does not list its blocks: sizes are the tensors' own, and what it adds to "
    "them counts as unreferenced"
)


def holders(
    namespace: Mapping[str, Any] | None = None, *, gc: bool = False, shell: Any = None
) -> Holders:
    """Return what holds GPU memory, by the user's variables. Bytes.

    Walks over what the variables in ``namespace`` reference (default: the notebook's, or the main
    module's) and runs no user code. What only the notebook references is counted separately. Locals
    of running functions are in no namespace: ``holders({**globals(), **locals()})``.

    Args:
        namespace: Names and their values.
        gc: Also look through all objects of the process for tensors that no variable references;
            some 100 ms, and more in a large process.
        shell: The IPython shell; by default the one that runs, if one does.

    Imports no torch, makes no context, waits for nothing.
    """
    if not torch_cuda.contexts():
        return Holders(error=failure.why_no_gpu())
    try:
        # The caller references the values of a namespace of its own.
        survey = Survey.make(namespace, shell, certain=namespace is None)
    except UnreadableError as error:
        return Holders(error=str(error))
    return survey.result(scan=gc)


def current_shell() -> Any:
    """Return the IPython shell of this process, or None."""
    ipython = sys.modules.get("IPython")
    return None if ipython is None else ipython.get_ipython()


@dataclass
class Survey:
    """The blocks, the roots in the order in which blocks count to them, and which hold which."""

    blocks: Blocks
    roots: Sequence[Root]
    walked: Walked
    cell_of: tracebacks.CellOf = tracebacks.no_cells

    @classmethod
    def make(
        cls,
        namespace: Mapping[str, Any] | None = None,
        shell: Any = None,
        *,
        seconds: float | None = None,
        certain: bool = False,
    ) -> Survey:
        """Make a survey now; with ``certain`` also of references from unvisited objects.

        Raises:
            UnreadableError: a pluggable allocator, which keeps no counters.
        """
        shell = current_shell() if shell is None else shell
        notebook = None if shell is None else NotebookReferences(shell)
        if namespace is None:
            namespace = notebook.namespace if notebook else vars(sys.modules["__main__"])
        plugins = _plugins(namespace)
        modules = {**tracebacks.users_modules(), **plugins}
        roots = [*named_roots(namespace, modules, notebook), *finalized()]
        without: list[Any] = [namespace, sys.modules, vars(sys), vars(builtins)]
        # Their content has roots of its own.
        without += map(introspection.module_attributes, plugins.values())
        if notebook is not None:
            roots += notebook.roots()
            without += notebook.excluded()
        owners = OtherReferences(notebook)
        roots += owners.roots()
        without += owners.excluded()
        places = None
        if certain:
            places = [namespace, *map(introspection.module_attributes, modules.values())]
            places += notebook.places() if notebook else (vars(sys),)
        blocks = Blocks.read()
        walked = walk(
            roots,
            blocks,
            without=without,
            user_modules=modules,
            seconds=seconds,
            places=places,
        )
        if certain:
            roots.append(Root(ELSEWHERE, "", ()))
        survey = cls(blocks, roots, walked, notebook.cell_of if notebook else tracebacks.no_cells)
        survey._name_locals()
        survey._name_elsewhere()
        return survey

    def _name_locals(self) -> None:
        """Do not count to the last exception what a failed function's variable holds."""
        local = self._mask(lambda root: root.kind == LOCAL)
        last = self._mask(lambda root: root.name == LAST)
        for block, owners in self.walked.owners.items():
            if owners & local:
                self.walked.owners[block] = owners & ~last

    def _name_elsewhere(self) -> None:
        """Remove the unknown reference from blocks that a known root outside of variables holds."""
        known = self._mask(lambda root: root.kind in KINDS)
        unknown = self._mask(lambda root: root.name == ELSEWHERE)
        for block, owners in self.walked.owners.items():
            if owners & known:
                self.walked.owners[block] = owners & ~unknown

    def held_by(self, chosen: Callable[[Root], bool]) -> set[int]:
        """Return the blocks that only the chosen roots hold."""
        mask = self._mask(chosen)
        return {b for b, owners in self.walked.owners.items() if owners and not owners & ~mask}

    def beside(
        self, chosen: Callable[[Root], bool], going: Callable[[Root], bool]
    ) -> tuple[set[int], set[int], list[str]]:
        """Return the chosen roots' blocks, those that others than ``going`` hold, and who."""
        mask, staying = self._mask(chosen), ~self._mask(going)
        held = {b: owners for b, owners in self.walked.owners.items() if owners & mask}
        rest = {block for block, owners in held.items() if owners & staying}
        who = dict.fromkeys(self.roots[i].name for b in rest for i in bits(held[b] & staying))
        return set(held), rest, list(who)

    def alone(self, beside: Callable[[Root], bool]) -> dict[int, set[int]]:
        """Return by a root's place the blocks that otherwise only ``beside`` roots hold."""
        mask = self._mask(beside)
        found: dict[int, set[int]] = {}
        for block, owners in self.walked.owners.items():
            rest = owners & ~mask
            if rest and not rest & (rest - 1):
                found.setdefault(rest.bit_length() - 1, set()).add(block)
        return found

    def holding_any(self, chosen: Callable[[Root], bool]) -> list[Root]:
        """Return those of the chosen roots that hold any block."""
        holding = 0
        for owners in self.walked.owners.values():
            holding |= owners
        return [self.roots[i] for i in bits(holding & self._mask(chosen))]

    def _mask(self, chosen: Callable[[Root], bool]) -> int:
        return sum(1 << i for i, root in enumerate(self.roots) if chosen(root))

    # --- the result ------------------------------------------------------------------------------

    def result(self, *, scan: bool = False) -> Holders:
        """Return what holds every device's memory; ``scan`` looks at all objects for the rest."""
        rest = self._rest()
        sites = scanned(self.blocks, rest, self.cell_of) if scan else self._sites(rest)
        devices = {
            ordinal: self._device(ordinal, allocated, sites.get(ordinal, ()))
            for ordinal, allocated in self.blocks.allocated.items()
        }
        notes = [*uncounted(), *self.walked.incomplete]
        if not self.blocks.exact:
            notes.append(INEXACT)
        if not self.blocks.consistent:
            notes.append("another thread allocates meanwhile: figures are of different times")
        return Holders(devices, tuple(notes))

    def _rest(self) -> list[int]:
        owners = self.walked.owners
        return [i for i in range(len(self.blocks.all)) if not owners.get(i)]

    def _device(self, ordinal: int, allocated: int, sites: tuple[Site, ...]) -> DeviceHolders:
        counted: dict[int, _Count] = {}
        for place, owners in self.walked.owners.items():
            block = self.blocks.all[place]
            if block.device != ordinal or not owners:
                continue
            first, *others = bits(owners)
            count = counted.setdefault(first, _Count())
            count.add(block, self.walked.parts.get(place, ""), owners)
            for root in (first, *others) if others else ():
                counted.setdefault(root, _Count()).shared += block.requested
        counts = ((self.roots[place], count) for place, count in counted.items())
        found = [self._holder(root, count) for root, count in counts if root.name != ELSEWHERE]
        found.sort(key=lambda holder: -holder.bytes)
        named = sum(holder.bytes for holder in found if not holder.pinned)
        pinned = sum(holder.bytes for holder in found if holder.pinned)
        rounding = None
        if self.blocks.exact:
            mine = (block for block in self.blocks.all if block.device == ordinal)
            rounding = sum(block.size - block.requested for block in mine)
        return DeviceHolders(
            allocated=allocated,
            named=named,
            pinned=pinned,
            unattributed=allocated - named - pinned - (rounding or 0),
            rounding=rounding,
            holders=tuple(found),
            sites=sites,
        )

    def _holder(self, root: Root, count: _Count) -> Holder:
        others = [other for i in bits(count.owners) if (other := self.roots[i]) is not root]
        if root.kind != LOCAL:
            names = [LAST if other.kind == LOCAL else other.name for other in others]
        else:
            names = [other.name for other in others]
        also = dict.fromkeys(name for name in names if name != root.name)
        return Holder(
            name=root.name,
            kind=root.kind,
            bytes=count.bytes,
            parts=count.parts,
            blocks=count.blocks,
            alone=count.alone,
            shared=count.shared,
            also=tuple(also),
            pinned=root.by_notebook,
        )

    # --- what no variable references -------------------------------------------------------------

    def _sites(self, rest: Iterable[int]) -> dict[int, tuple[Site, ...]]:
        """Return memory by the line that allocated it, where torch recorded that."""
        found = ((self.blocks.all[i], self.site(self.blocks.all[i])) for i in rest)
        return summed((block, where) for block, where in found if where is not None)

    def site(self, block: Block) -> str | None:
        """Return the line that allocated a block, where torch recorded that."""
        lines = [frame for frame in block.frames if str(frame.get("filename", "")).strip("?")]
        users = [f for f in lines if tracebacks.is_users(f["filename"], self.cell_of)]
        for frame in users or lines[:1]:
            where = tracebacks.place(frame["filename"], frame["line"], self.cell_of)
            return where if frame["name"].startswith("<") else f"{where} in {frame['name']}"
        return None


class _Count:
    """What one root holds on one device."""

    def __init__(self) -> None:
        self.bytes = self.blocks = self.alone = self.shared = self.owners = 0
        self.parts: dict[str, int] = {}

    def add(self, block: Block, part: str, owners: int) -> None:
        self.bytes += block.requested
        self.blocks += 1
        self.parts[part] = self.parts.get(part, 0) + block.requested
        self.owners |= owners
        if not owners & (owners - 1):
            self.alone += block.requested


# --- roots --------------------------------------------------------------------------------------


def named_roots(
    namespace: Mapping[str, Any], modules: Mapping[str, Any], notebook: NotebookReferences | None
) -> list[Root]:
    """Return the user's variables: modules first, as what others reference too counts to them."""
    names = list(namespace.items())
    found = [
        (name, value)
        for name, value in names
        if not (notebook.is_notebooks(name, value) if notebook else name[:2] == "__" == name[-2:])
    ]
    called = {
        id(value): name for name, value in names if introspection.is_a(value, types.ModuleType)
    }
    for module_name, module in modules.items():
        # A package in a variable leads to its modules; others are referenced by Python alone.
        package, _, rest = module_name.partition(".")
        within = called.get(id(modules.get(package)))
        name = called.get(id(module)) or (f"{within}.{rest}" if within and rest else module_name)
        if id(module) in called or name != "__main__":
            found += _of_module(name, module, namespace)
    ranked = [(*_kind(value), name, value) for name, value in found]
    ranked.sort(key=lambda item: item[0])
    return [Root(name, kind, (value,)) for _, kind, name, value in ranked]


def _plugins(namespace: Mapping[str, Any]) -> dict[str, Any]:
    """Return the user's modules in variables that are not in `sys.modules`."""
    listed = {id(module) for module in list(sys.modules.values())}
    return {
        name: value
        for name, value in list(namespace.items())
        if introspection.is_a(value, types.ModuleType)
        and id(value) not in listed
        and tracebacks.is_own(introspection.module_file(value))
    }


def _of_module(name: str, module: Any, namespace: Mapping[str, Any]) -> list[tuple[str, Any]]:
    inside = introspection.module_attributes(module)
    if inside is namespace:
        return []
    return [
        (f"{name}.{key}", value) for key, value in introspection.names(inside) if key[:2] != "__"
    ]


def _kind(value: Any) -> tuple[int, str]:
    """Return the rank and the name of a value's kind."""
    kind, torch = type(value), torch_cuda.loaded()
    if torch is not None:
        if introspection.derives(kind, torch.nn.Module):
            return 0, "module"
        if introspection.derives(kind, torch.Tensor):
            return 2, "tensor"
        if introspection.derives(kind, torch.optim.Optimizer):
            return 4, "optimizer"
    if introspection.derives(kind, type):
        return 5, "class"
    if introspection.derives(kind, *_FUNCTIONS):
        return 5, "function"
    # A list ranks before the variable of a loop over it.
    return 1 if id(kind) in _CONTAINERS else 3, introspection.name_of(kind)


_FUNCTIONS = (types.FunctionType, types.MethodType, types.BuiltinFunctionType)
#: The ids of types: to compare a type may run a metaclass's code.
_CONTAINERS = {id(kind) for kind in (list, tuple, dict, set, frozenset)}
