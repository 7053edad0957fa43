"""What holds GPU memory, to the byte: ``%gpumem vars``, ``free``, the out-of-memory report."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

from gpumagic.cells.tracebacks import CellOf
from gpumagic.cuda import no_gpu
from gpumagic.cuda.pytorch import torch_cuda
from gpumagic.memory.objects.blocks import Block, BlockIndex, Blocks, UnreadableError
from gpumagic.memory.objects.garbage import Unreferenced, running_threads, unreferenced
from gpumagic.memory.objects.ipython_references import (
    EXCEPTION,
    LAST,
    LOCAL,
    NotebookReferences,
    Root,
)
from gpumagic.memory.objects.object_graph import ObjectGraph
from gpumagic.memory.objects.search_space import SearchSpace
from gpumagic.memory.objects.walk import Walk, collector_paused
from gpumagic.results.memory.holders import DeviceHolders, Holder, Holders
from gpumagic.system.shell import Shell
from gpumagic.wording import listed

#: What references are called that are counted but not found: a thread's, a library's, C++'s.
ELSEWHERE = Root("another reference", "")
#: Seconds of CPU time after which `holders` looks no further for each of what variables, garbage
#: and other objects hold.
SECONDS = 5.0
#: Why the memory of some variables is not freed by deleting them.
_STAYS = (
    "{names}: autograd's graph refers to itself here, as backward(create_graph=True) makes it: del "
    "frees nothing of that, 'tensor.grad = None' does"
)


@collector_paused()
def holders(
    namespace: Mapping[str, Any] | None = None,
    *,
    shell: Shell | None = None,
    seconds: float | None = SECONDS,
) -> Holders:
    """Return what holds GPU memory, by the user's variables. Bytes.

    Walks over what the variables in ``namespace`` reference (default: the notebook's, or the main
    module's) and runs no user code. What only the notebook references is counted separately. Locals
    of running functions are in no namespace: ``holders({**globals(), **locals()})``. The walk
    imports no torch, makes no CUDA context and does not wait for a GPU.

    Args:
        namespace: Names and their values.
        shell: The IPython shell; by default the one that runs, if one does.
        seconds: The CPU time after which it looks no further for each of what variables, garbage
            and other objects hold; the result says so. None for any.

    Examples:
        >>> x = torch.empty(2**20, dtype=torch.uint8, device="cuda")
        >>> gpumagic.holders({"x": x}).devices[0]["x"].bytes
        1048576

    .. versionadded:: 0.1.0
    """
    if not torch_cuda.contexts():
        return Holders(error=no_gpu.reason())
    try:
        # The caller references the values of a namespace of its own.
        survey = Survey.make(namespace, shell, seconds=seconds, certain=namespace is None)
    except UnreadableError as error:
        return Holders(error=str(error))
    return survey.result(survey.unreferenced())


@dataclass
class Survey:
    """The allocated blocks, and which of the roots lead to each."""

    blocks: Blocks
    #: In the order in which blocks count to them.
    roots: list[Root]
    #: The roots that hold a block, and what it is to them.
    owners: dict[BlockIndex, list[Root]]
    roles: dict[BlockIndex, str]
    #: The blocks that a reference cycle through C++ holds, which nothing breaks.
    staying: set[BlockIndex]
    #: What could not be looked at; empty where everything was.
    missed: list[str]
    #: Returns a new walk; None where the first one did not come to its end.
    make_walk: Callable[[], Walk] | None
    cell_of: CellOf | None

    @classmethod
    def make(
        cls,
        namespace: Mapping[str, Any] | None = None,
        shell: Shell | None = None,
        *,
        seconds: float | None = None,
        certain: bool = False,
    ) -> Survey:
        """Make a survey now; with ``certain`` also of references that are not found.

        Raises:
            UnreadableError: torch's allocator lists no blocks.
        """
        if shell is None and "IPython" in sys.modules:
            shell = sys.modules["IPython"].get_ipython()
        notebook = None if shell is None else NotebookReferences(shell)
        if namespace is None:
            namespace = notebook.namespace if notebook else vars(sys.modules["__main__"])
        blocks, space = Blocks(), SearchSpace(namespace, notebook)
        roots, excluded = space.roots(), space.excluded()

        def make_walk() -> Walk:
            return Walk(blocks, excluded=excluded, user_modules=space.modules, seconds=seconds)

        walk = make_walk()
        walk.visit(chain.from_iterable(roots.values()))
        graph = ObjectGraph(walk)
        held = {root: {*map(id, values)} for root, values in roots.items()}
        if certain:
            held[ELSEWHERE] = graph.held_elsewhere(space.references(roots, excluded))
        owners: dict[BlockIndex, list[Root]] = {}
        for root, keys in held.items():
            for index in graph.blocks(graph.reached(keys)):
                owners.setdefault(index, []).append(root)
        known = {index: _told(found) for index, found in owners.items() if found != [ELSEWHERE]}
        return cls(
            blocks=blocks,
            roots=[*roots],
            owners=known,
            roles=graph.roles(chain.from_iterable(held.values())),
            staying=graph.blocks(graph.staying()),
            missed=[*walk.missed()],
            make_walk=None if walk.ended else make_walk,
            cell_of=None if notebook is None else notebook.cell_of,
        )

    def freed(self, names: Collection[str] = ()) -> list[Block]:
        """Return the blocks that ``%gpumem free NAMES`` frees: nothing else holds them."""
        return [
            self.blocks.all[index]
            for index, by in self.owners.items()
            if index not in self.staying
            and all(root.by_notebook or root.name in names for root in by)
        ]

    def holding(self, names: Collection[str] | None = None) -> list[Root]:
        """Return the roots that hold any block; of those that ``names`` hold, if given."""
        found = {
            owner
            for owners in self.owners.values()
            if names is None or any(o.name in names and not o.by_notebook for o in owners)
            for owner in owners
        }
        return [root for root in self.roots if root in found]

    def unreferenced(self, *, collected: bool = False) -> Unreferenced | None:
        """Return whose the blocks are that no root holds; None where that is not known.

        ``collected``: Python's collector has just run.
        """
        if self.make_walk is None:
            return None
        return unreferenced(self.blocks, {*self.owners}, self.make_walk(), collected=collected)

    # --- the result ------------------------------------------------------------------------------

    def result(self, unreferenced: Unreferenced | None = None) -> Holders:
        """Return what holds every device's memory."""
        notes = [*self.missed]
        if self.staying:
            names = dict.fromkeys(
                self.owners[index][0].name for index in self.staying & self.owners.keys()
            )
            notes.append(_STAYS.format(names=listed([*names], 3)))
        if unreferenced and unreferenced.live:
            notes += running_threads(self.cell_of)
        devices = {
            ordinal: self._device(ordinal, unreferenced) for ordinal in self.blocks.allocated
        }
        return Holders(devices, tuple(notes))

    def _device(self, ordinal: int, unreferenced: Unreferenced | None) -> DeviceHolders:
        mine = {n: block for n, block in enumerate(self.blocks.all) if block.device == ordinal}
        counted: dict[Root, list[BlockIndex]] = {}
        for index, (first, *others) in self.owners.items():
            if index in mine:
                counted.setdefault(first, []).append(index)
                for other in others:
                    counted.setdefault(other, [])
        counted.pop(ELSEWHERE, None)  # what is held from elsewhere is no row
        found = [self._holder(root, indexes) for root, indexes in counted.items()]
        found.sort(key=lambda holder: -holder.bytes)
        notebook = sum(holder.bytes for holder in found if holder.by_notebook)
        named = sum(holder.bytes for holder in found) - notebook
        rounding = sum(block.size - block.requested for block in mine.values())
        allocated = self.blocks.allocated[ordinal]
        rest = allocated - named - notebook - rounding
        garbage, live = (
            None if indexes is None else sum(mine[n].requested for n in indexes & mine.keys())
            for indexes in unreferenced or (None, None)
        )
        return DeviceHolders(
            allocated, named, notebook, rest, rounding, tuple(found), garbage, live
        )

    def _holder(self, root: Root, indexes: list[BlockIndex]) -> Holder:
        """Return what a root holds on a device: the blocks that count to it."""
        sizes = {index: self.blocks.all[index].requested for index in indexes}
        others = {index: self.owners[index][1:] for index in indexes}
        rest = {"module": "other tensors", "optimizer": "optimizer state"}.get(root.kind, "")
        parts: dict[str, int] = {}
        for index, size in sizes.items():
            part = self.roles[index] or rest
            parts[part] = parts.get(part, 0) + size
        # The variables of failed functions have names that are too long for a column.
        also = dict.fromkeys(
            LAST if other.kind == LOCAL and root.kind != LOCAL else other.name
            for other in chain(*others.values())
        )
        alone = (n for n in indexes if not others[n] and n not in self.staying)
        return Holder(
            root.name,
            root.kind,
            sum(sizes.values()),
            parts,
            len(indexes),
            sum(sizes[index] for index in alone),
            tuple(also),
            root.by_notebook,
        )


def _told(roots: list[Root]) -> list[Root]:
    """Return the owners of a block that are told.

    What a failed function's variable holds does not count to the last exception, too.
    """
    if any(root.kind == LOCAL for root in roots):
        return [root for root in roots if root.kind != EXCEPTION]
    return roots
