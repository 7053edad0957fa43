"""``%gpumem vars``: what holds GPU memory, to the byte: the blocks that each variable leads to.

And all others: `garbage` finds whose those are that no variable leads to.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from gpumagic.cells.tracebacks import CellOf
from gpumagic.cuda import failure, torch_cuda
from gpumagic.memory.objects.blocks import Block, Blocks, UnreadableError
from gpumagic.memory.objects.garbage import Unreferenced, running_threads, unreferenced
from gpumagic.memory.objects.object_graph import ObjectGraph
from gpumagic.memory.objects.roots import EXCEPTION, LAST, LOCAL, Name, NotebookReferences, Places
from gpumagic.memory.objects.walk import Walk, collector_paused
from gpumagic.results.holders import DeviceHolders, Holder, Holders
from gpumagic.system.shell import Shell
from gpumagic.wording import listed

#: What references are called that are counted but not found: a thread's, a library's, C++'s.
ELSEWHERE = Name("another reference", "")
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
    of running functions are in no namespace: ``holders({**globals(), **locals()})``.

    Args:
        namespace: Names and their values.
        shell: The IPython shell; by default the one that runs, if one does.
        seconds: The CPU time after which it looks no further for each of what variables, garbage
            and other objects hold; the result says so. None for any.

    Imports no torch, makes no context, waits for nothing.

    Examples:
        >>> x = torch.empty(2**20, dtype=torch.uint8, device="cuda")
        >>> gpumagic.holders({"x": x}).devices[0]["x"].bytes
        1048576

    .. versionadded:: 0.1.0
    """
    if not torch_cuda.contexts():
        return Holders(error=failure.why_no_gpu())
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
    roots: list[Name]
    #: By a block's place in `blocks`, the roots that hold it, and what it is to them.
    owners: dict[int, list[Name]]
    roles: dict[int, str]
    #: The places of the blocks that a reference cycle through C++ holds, which nothing breaks.
    staying: set[int]
    #: What could not be looked at; empty where everything was.
    missed: list[str]
    #: Returns a new walk.
    make_walk: Callable[[], Walk]
    complete: bool
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
        blocks, places = Blocks(), Places(namespace, notebook)
        roots, excluded = places.roots(), places.excluded()

        def make_walk() -> Walk:
            return Walk(blocks, excluded=excluded, user_modules=places.modules, seconds=seconds)

        walk = make_walk()
        walk.visit(chain.from_iterable(root.values for root in roots))
        graph = ObjectGraph(walk)
        held = [(root.name, {*map(id, root.values)}) for root in roots]
        for _, keys in held:
            graph.add_role("", keys)
        if certain:
            held.append((ELSEWHERE, graph.held_elsewhere(places.references(roots, excluded))))
        owners: dict[int, list[Name]] = {}
        for name, keys in held:
            for place in graph.places(graph.reached(keys)):
                owners.setdefault(place, []).append(name)
        return cls(
            blocks,
            [*(root.name for root in roots), ELSEWHERE],
            {place: _told(names) for place, names in owners.items()},
            graph.roles,
            graph.places(graph.staying()),
            [*walk.missed()],
            make_walk,
            complete=not walk.ended,
            cell_of=None if notebook is None else notebook.cell_of,
        )

    def held_by(self, chosen: Callable[[Name], bool]) -> list[Block]:
        """Return the blocks that the chosen roots alone hold, and that would be freed."""
        return [
            self.blocks.all[place]
            for place, by in self.owners.items()
            if by and place not in self.staying and all(map(chosen, by))
        ]

    def holding(self, names: Collection[str] | None = None) -> list[Name]:
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
        if not self.complete:
            return None
        owned = {place for place, owners in self.owners.items() if owners}
        return unreferenced(self.blocks, owned, self.make_walk(), collected=collected)

    # --- the result ------------------------------------------------------------------------------

    def result(self, unreferenced: Unreferenced | None = None) -> Holders:
        """Return what holds every device's memory."""
        devices = {
            ordinal: self._device(ordinal, allocated, unreferenced)
            for ordinal, allocated in self.blocks.allocated.items()
        }
        notes = [*self.missed]
        if self.staying:
            held = (self.owners.get(place, [])[:1] for place in self.staying)
            names = dict.fromkeys(name.name for owners in held for name in owners)
            notes.append(_STAYS.format(names=listed([*names], 3)))
        if unreferenced and unreferenced.live:
            notes += running_threads(self.cell_of)
        if not self.blocks.consistent:
            notes.append("another thread allocates meanwhile: figures are of different times")
        return Holders(devices, tuple(notes))

    def _device(
        self, ordinal: int, allocated: int, unreferenced: Unreferenced | None
    ) -> DeviceHolders:
        mine = {n: block for n, block in enumerate(self.blocks.all) if block.device == ordinal}
        counts: dict[Name, _Count] = {}
        for place, owners in self.owners.items():
            if owners and place in mine:
                for owner in owners:
                    counts.setdefault(owner, _Count())
                size, role = mine[place].requested, self.roles[place]
                stays = place in self.staying
                counts[owners[0]].add(size, role, owners[1:], stays=stays)
        counts.pop(ELSEWHERE, None)  # what is held from elsewhere is no row
        found = [count.holder(root) for root, count in counts.items()]
        found.sort(key=lambda holder: -holder.bytes)
        notebook = sum(holder.bytes for holder in found if holder.by_notebook)
        named = sum(holder.bytes for holder in found) - notebook
        rounding = sum(block.size - block.requested for block in mine.values())
        rest = allocated - named - notebook - rounding
        garbage, live = (
            None if places is None else sum(mine[n].requested for n in places & mine.keys())
            for places in unreferenced or (None, None)
        )
        return DeviceHolders(
            allocated, named, notebook, rest, rounding, tuple(found), garbage, live
        )


def _told(names: list[Name]) -> list[Name]:
    """Return the owners of a block that are told; none where nothing is known of them.

    What a failed function's variable holds does not count to the last exception, too.
    """
    if any(name.kind == LOCAL for name in names):
        names = [name for name in names if name.kind != EXCEPTION]
    return [] if names == [ELSEWHERE] else names


@dataclass
class _Count:
    """What one root holds on one device. Bytes."""

    bytes: int = 0
    blocks: int = 0
    frees: int = 0
    parts: dict[str, int] = field(default_factory=dict)
    #: The other roots that hold some of it.
    others: list[Name] = field(default_factory=list)

    def add(self, size: int, role: str, others: Sequence[Name], *, stays: bool) -> None:
        """Count a block; one that ``stays`` is freed with nothing."""
        self.bytes += size
        self.blocks += 1
        self.frees += 0 if others or stays else size
        self.parts[role] = self.parts.get(role, 0) + size
        self.others += others

    def holder(self, root: Name) -> Holder:
        """Return it as a part of the result."""
        # The variables of failed functions have names that are too long for a column.
        also = dict.fromkeys(
            LAST if other.kind == LOCAL and root.kind != LOCAL else other.name
            for other in self.others
        )
        rest = {"module": "other tensors", "optimizer": "optimizer state"}.get(root.kind, "")
        parts = {role or rest: size for role, size in self.parts.items()}
        counts = (self.blocks, self.frees, tuple(also))
        return Holder(root.name, root.kind, self.bytes, parts, *counts, root.by_notebook)
