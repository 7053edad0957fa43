"""What holds GPU memory, to the byte: the blocks that each variable leads to; and freeing it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Set
from dataclasses import dataclass, field
from typing import Any

from gpumagic.cells.tracebacks import CellOf
from gpumagic.cuda import failure, torch_cuda
from gpumagic.memory.report import uncounted
from gpumagic.memory.roots import EXCEPTION, LAST, LOCAL, NotebookReferences, Places
from gpumagic.memory.torch_memory import Block, Blocks, UnreadableError
from gpumagic.memory.unreferenced import (
    Unreferenced,
    running_threads,
    unreferenced,
)
from gpumagic.memory.walk import Name, Walk, Walked
from gpumagic.results.holders import DeviceHolders, Holder, Holders

#: What references are called that are counted but not found: a thread's, a library's, C++'s.
ELSEWHERE = Name("another reference", "")
#: Seconds of CPU time after which `holders` looks no further for each of what variables, garbage
#: and other objects hold.
SECONDS = 5.0


def holders(
    namespace: Mapping[str, Any] | None = None,
    *,
    shell: Any = None,
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
    """The blocks, the roots in the order in which blocks count to them, and which hold which."""

    blocks: Blocks
    roots: list[Name]
    walked: Walked
    #: Returns a walk as that which was made, to make another one.
    make_walk: Callable[[], Walk]
    cell_of: CellOf | None

    @classmethod
    def make(
        cls,
        namespace: Mapping[str, Any] | None = None,
        shell: Any = None,
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

        walked = make_walk().run(roots, places.holding() if certain else None)
        names = [*(root.name for root in roots), ELSEWHERE]
        cell_of = None if notebook is None else notebook.cell_of
        survey = cls(blocks, names, walked, make_walk, cell_of)
        survey._tidy()
        return survey

    def _tidy(self) -> None:
        """Do not count to the last exception what a failed function's variable holds.

        Nor anything to no root at all.
        """
        local = self._mask(lambda root: root.kind == LOCAL)
        last = self._mask(lambda root: root.kind == EXCEPTION)
        elsewhere = self._mask(lambda root: root is ELSEWHERE)
        for block, owners in self.walked.owners.items():
            known = owners & ~last if owners & local else owners
            self.walked.owners[block] = known if known != elsewhere else 0

    def _mask(self, chosen: Callable[[Name], bool]) -> int:
        return sum(1 << place for place, root in enumerate(self.roots) if chosen(root))

    def held_by(self, chosen: Callable[[Name], bool]) -> list[Block]:
        """Return the blocks that only the chosen roots hold."""
        mask = self._mask(chosen)
        owned = self.walked.owners.items()
        return [self.blocks.all[b] for b, owners in owned if owners and not owners & ~mask]

    def holding_any(self, chosen: Callable[[Name], bool]) -> list[Name]:
        """Return those of the chosen roots that hold any block."""
        holding = 0
        for owners in self.walked.owners.values():
            holding |= owners
        return [self.roots[place] for place in _bits(holding & self._mask(chosen))]

    def others_holding(self, names: Collection[str]) -> list[str]:
        """Return the variables, beside these, that hold some of their memory."""
        chosen = self._mask(lambda root: root.name in names and not root.by_notebook)
        shared = 0
        for owners in self.walked.owners.values():
            shared |= owners & ~chosen if owners & chosen else 0
        roots = (self.roots[place] for place in _bits(shared))
        return [root.name for root in roots if not root.by_notebook]

    def unreferenced(self) -> Unreferenced | None:
        """Return whose the blocks are that no root holds; None where that is not known."""
        owned = {block for block, owners in self.walked.owners.items() if owners}
        return unreferenced(self.blocks, owned, self.make_walk) if self.walked.complete else None

    # --- the result ------------------------------------------------------------------------------

    def result(self, unreferenced: Unreferenced | None = None) -> Holders:
        """Return what holds every device's memory."""
        counts: dict[int, dict[int, _Count]] = {ordinal: {} for ordinal in self.blocks.allocated}
        for place, owners in self.walked.owners.items():
            if owners:
                block = self.blocks.all[place]
                role = self.walked.roles.get(place, "")
                self._count(counts.setdefault(block.device, {}), block, role, owners)
        devices = {
            ordinal: self._device(ordinal, allocated, counts[ordinal], unreferenced)
            for ordinal, allocated in self.blocks.allocated.items()
        }
        notes = [*uncounted(), *self.walked.missed]
        if unreferenced and unreferenced.live:
            notes += running_threads(self.cell_of)
        if not self.blocks.consistent:
            notes.append("another thread allocates meanwhile: figures are of different times")
        return Holders(devices, tuple(notes))

    def _count(self, counts: dict[int, _Count], block: Block, role: str, owners: int) -> None:
        first, *others = _bits(owners)
        count = counts.get(first)
        if count is None:
            count = counts[first] = _Count()
        count.bytes += block.requested
        count.blocks += 1
        count.parts[role] = count.parts.get(role, 0) + block.requested
        if not others:
            count.frees += block.requested
        else:
            for place in others:
                counts.setdefault(place, _Count())
            count.also |= owners

    def _device(
        self,
        ordinal: int,
        allocated: int,
        counts: dict[int, _Count],
        unreferenced: Unreferenced | None,
    ) -> DeviceHolders:
        counts.pop(len(self.roots) - 1, None)  # what is held from elsewhere is no row
        found = [self._holder(place, count) for place, count in sorted(counts.items())]
        found.sort(key=lambda holder: -holder.bytes)
        notebook = sum(holder.bytes for holder in found if holder.by_notebook)
        named = sum(holder.bytes for holder in found) - notebook
        mine = (block for block in self.blocks.all if block.device == ordinal)
        rounding = sum(block.size - block.requested for block in mine)
        rest = allocated - named - notebook - rounding
        parts = () if unreferenced is None else (self._size(ordinal, part) for part in unreferenced)
        return DeviceHolders(allocated, named, notebook, rest, rounding, tuple(found), *parts)

    def _size(self, ordinal: int, places: Set[int]) -> int:
        blocks = (self.blocks.all[place] for place in places)
        return sum(block.requested for block in blocks if block.device == ordinal)

    def _holder(self, place: int, count: _Count) -> Holder:
        root = self.roots[place]
        others = (self.roots[other] for other in _bits(count.also & ~(1 << place)))
        # The variables of failed functions have names that are too long for a column.
        also = dict.fromkeys(
            LAST if other.kind == LOCAL and root.kind != LOCAL else other.name for other in others
        )
        other_parts = {"module": "other tensors", "optimizer": "optimizer state"}.get(root.kind, "")
        parts = {role or other_parts: size for role, size in count.parts.items()}
        return Holder(
            root.name,
            root.kind,
            count.bytes,
            parts,
            count.blocks,
            count.frees,
            tuple(also),
            root.by_notebook,
        )


@dataclass
class _Count:
    """What one root holds on one device. Bytes."""

    bytes: int = 0
    blocks: int = 0
    frees: int = 0
    #: A bit for each root that holds some of it, too.
    also: int = 0
    parts: dict[str, int] = field(default_factory=dict)


def _bits(mask: int) -> Iterator[int]:
    """Yield the places of the bits that are set, the lowest first."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low
