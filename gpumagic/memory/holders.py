"""What holds GPU memory, to the byte: the blocks that each variable leads to; and freeing it."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpumagic.cuda import failure, torch_cuda
from gpumagic.errors import DeviceError, SpecError
from gpumagic.memory.report import PLUGGABLE, uncounted
from gpumagic.memory.roots import EXCEPTION, LAST, LOCAL, NotebookReferences, Places
from gpumagic.memory.torch_memory import Block, Blocks, UnreadableError
from gpumagic.memory.walk import Name, Walk, Walked
from gpumagic.results.allocator import Freed, FreeStep, Held
from gpumagic.results.holders import DeviceHolders, Holder, Holders
from gpumagic.system import introspection, text

#: What references are called that are counted but not found: a thread's, a library's, C++'s.
ELSEWHERE = Name("another reference", "")
#: Seconds of CPU time after which `holders` looks no further.
SECONDS = 10.0


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
        seconds: The CPU time after which it looks no further; a note says so. None for any.

    Imports no torch, makes no context, waits for nothing.
    """
    if not torch_cuda.contexts():
        return Holders(error=failure.why_no_gpu())
    try:
        # The caller references the values of a namespace of its own.
        survey = Survey.make(namespace, shell, seconds=seconds, certain=namespace is None)
    except UnreadableError as error:
        return Holders(error=str(error))
    return survey.result()


@dataclass
class Survey:
    """The blocks, the roots in the order in which blocks count to them, and which hold which."""

    blocks: Blocks
    roots: list[Name]
    walked: Walked

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
        roots = places.roots()
        walk = Walk(
            blocks, excluded=places.excluded(), user_modules=places.modules, seconds=seconds
        )
        walked = walk.run(roots, places.holding() if certain else None)
        survey = cls(blocks, [*(root.name for root in roots), ELSEWHERE], walked)
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

    def beside(
        self, chosen: Callable[[Name], bool], going: Callable[[Name], bool]
    ) -> tuple[str, ...]:
        """Return which roots but those that are ``going`` hold blocks of the chosen ones, too."""
        mask, staying = self._mask(chosen), ~self._mask(going)
        others = 0
        for owners in self.walked.owners.values():
            if owners & mask:
                others |= owners & staying
        return tuple(self.roots[place].name for place in _bits(others))

    # --- the result ------------------------------------------------------------------------------

    def result(self) -> Holders:
        """Return what holds every device's memory."""
        counts: dict[int, dict[int, _Count]] = {ordinal: {} for ordinal in self.blocks.allocated}
        for place, owners in self.walked.owners.items():
            if owners:
                block = self.blocks.all[place]
                role = self.walked.roles.get(place, "")
                self._count(counts.setdefault(block.device, {}), block, role, owners)
        devices = {
            ordinal: self._device(ordinal, allocated, counts[ordinal])
            for ordinal, allocated in self.blocks.allocated.items()
        }
        notes = [*uncounted(), *self.walked.missed]
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

    def _device(self, ordinal: int, allocated: int, counts: dict[int, _Count]) -> DeviceHolders:
        counts.pop(len(self.roots) - 1, None)  # what is held from elsewhere is no row
        found = [self._holder(place, count) for place, count in sorted(counts.items())]
        found.sort(key=lambda holder: -holder.bytes)
        notebook = sum(holder.bytes for holder in found if holder.by_notebook)
        named = sum(holder.bytes for holder in found) - notebook
        mine = (block for block in self.blocks.all if block.device == ordinal)
        rounding = sum(block.size - block.requested for block in mine)
        rest = allocated - named - notebook - rounding
        return DeviceHolders(allocated, named, notebook, rest, rounding, tuple(found))

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


# --- freeing --------------------------------------------------------------------------------------


NO_DEBUG = "the last exception is gone: %debug and %tb have nothing to show"


def free(shell: Any, names: Sequence[str] = ()) -> Freed:
    """Delete ``names`` and the notebook's own references, collect garbage, and empty the cache.

    No other variable is changed. Of the notebook's references those stay that hold no GPU memory.

    Raises:
        SpecError: no such variable; nothing is done then.
        DeviceError: CUDA has failed in this process; nothing is done then.
    """
    notebook = NotebookReferences(shell)
    _check(notebook, names)
    dead = failure.check_context()
    if dead is not None:
        raise DeviceError(
            f"nothing was freed or deleted: CUDA has failed in this process ({dead}); "
            "%gpu restart --keep all starts it again"
        )
    before, steps = _held(), list[FreeStep]()
    holding, notes = _survey(shell, names)
    for name in names:
        shell.del_var(name, by_name=True)
    if names:
        steps.append(FreeStep(f"delete {', '.join(names)}", _held()))
    if holding:
        places = dict.fromkeys(LAST if r.kind in (LOCAL, EXCEPTION) else r.name for r in holding)
        if notebook.release(holding):
            notes.append(NO_DEBUG)
        steps.append(FreeStep(f"forget {', '.join(places)}", _held()))
    gc.collect()
    steps.append(FreeStep("collect garbage", _held()))
    try:
        torch_cuda.empty_cache()
    except RuntimeError as error:
        done = f"deleted: {', '.join(names)}" if names else "nothing was deleted"
        raise DeviceError(
            f"the cache was not emptied ({done}): {text.reason(error)}; "
            "if CUDA goes on to fail, %gpu restart --keep all starts it again"
        ) from None
    steps.append(FreeStep("empty the cache", _held()))
    unknown = PLUGGABLE if torch_cuda.allocator_backend() == "pluggable" else None
    return Freed(tuple(steps), before, tuple(names), tuple(notes), unknown)


def _check(notebook: NotebookReferences, names: Sequence[str]) -> None:
    for name in names:
        if name not in notebook.namespace:
            namespace = introspection.names(notebook.namespace)
            users = [each for each, value in namespace if not notebook.is_notebooks(each, value)]
            hint = text.did_you_mean(name, users)
            raise SpecError(f"%gpumem free: there is no variable {name!r}{hint}")
        if notebook.is_notebooks(name, notebook.namespace[name]):
            raise SpecError(
                f"%gpumem free: {name!r} is the notebook's own; without it, %gpumem free deletes "
                "the notebook's references"
            )


def _survey(shell: Any, names: Sequence[str]) -> tuple[list[Name], list[str]]:
    """Return the notebook's references that hold GPU memory, and what keeps that of ``names``."""
    if not torch_cuda.contexts():
        return [], [f"no GPU memory to free: {failure.why_no_gpu()}"]
    try:
        survey = Survey.make(shell=shell, certain=True)
    except UnreadableError as error:
        return [], [f"what the notebook itself keeps was left alone: {error}"]

    def is_going(root: Name) -> bool:
        return root.by_notebook or root.name in names

    notes = []
    for name in names:
        others = survey.beside(lambda root, name=name: root.name == name, is_going)  # type: ignore[misc]
        if others:
            more = f" and {len(others) - 3} more" if len(others) > 3 else ""
            hold = "hold" if len(others) > 1 else "holds"
            notes.append(f"{', '.join(others[:3])}{more} {hold} memory of {name}, too")
    return survey.holding_any(lambda root: root.by_notebook), notes


def _held() -> dict[int, Held]:
    """Return what torch's allocator holds, by ordinal; nothing where it does not count."""
    try:
        return {
            ordinal: Held(*torch_cuda.memory_held(ordinal)) for ordinal in torch_cuda.contexts()
        }
    except RuntimeError:
        return {}
