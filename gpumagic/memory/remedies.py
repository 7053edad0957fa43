"""Choose remedies against an out-of-memory error, the smallest first.

A remedy is enough if the failed request would then fit. The cell's own allocations count as in use,
also where they were freed since: the same cell would allocate them again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from gpumagic.cuda import torch_cuda
from gpumagic.memory.attribution import Survey
from gpumagic.memory.limit import LIMIT
from gpumagic.memory.notebook_references import OUTPUT
from gpumagic.render.units import share
from gpumagic.results import Process, Remedy

#: The number of variables that are tried, the largest ones.
_TRIED = 20


@dataclass(frozen=True)
class Situation:
    """The figures from which remedies are chosen. Bytes."""

    survey: Survey
    device: int
    requested: int | None
    free: int
    total: int
    limit: int | None
    fragmented: bool
    #: Not referenced by any known variable.
    unattributed: int
    #: Whether all objects were visited.
    complete: bool
    #: What the cell had allocated of its own when it failed, at most; None where not known.
    own: int | None
    #: What it had allocated and was freed since.
    released: int
    #: Other processes on this device.
    processes: tuple[Process, ...]
    #: Another ordinal with enough free memory for the request; None if none is known.
    other_device: int | None = None


def remedies(now: Situation) -> tuple[Remedy, ...]:
    """Return the remedies, the ones that cost least first."""
    # Freed when this exception replaced the previous one. This one holds its references while the
    # cell runs again.
    if now.own is not None and fits(now, set(), taken=now.own):
        again = Remedy("run the cell again", "memory has been freed since it failed", None, True)
        return (again, *_by_holders(now, _free), _less(now))
    found = [
        *_by_holders(now, _free),
        *_by_holders(now, _names),
        *_limit(now),
        *_processes(now),
        *_fragmentation(now),
    ]
    least = (now.requested or 0) // 100
    useful = [each for each in found if each.enough or each.gives is None or each.gives >= least]
    return (*useful, _less(now))


def _by_holders(
    now: Situation, offered: Callable[[Situation], Iterator[Remedy]]
) -> Iterator[Remedy]:
    """Yield the remedies ``offered``; not as sure ones where not all holders are known."""
    for remedy in offered(now):
        if now.complete:
            yield remedy
        else:
            why = (
                f"{remedy.why}; not all objects were visited, and other variables may hold it, too"
            )
            yield replace(remedy, why=why, enough=None)


def fits(now: Situation, gone: set[int], more: int = 0, taken: int | None = None) -> bool | None:
    """Return whether the request fits with the blocks ``gone`` freed and ``more`` bytes free.

    Before it the cell allocates ``taken`` bytes; by default, what was freed when it failed.
    """
    if now.requested is None:
        return None
    blocks = now.survey.blocks
    allocated, reserved = (each[now.device] for each in blocks.without(gone))
    free = now.free + blocks.reserved[now.device] - reserved + more
    if now.limit is not None:
        free = min(free, now.limit - reserved)
    taken = now.released if taken is None else taken
    # It is not known where the cell allocates: the total must be enough.
    enough = not taken or free + reserved - allocated - taken >= now.requested
    return enough and max(free, blocks.largest_free(now.device, gone)) >= now.requested


def _size(now: Situation, gone: set[int]) -> int:
    blocks = now.survey.blocks
    return sum(blocks.all[i].size for i in gone if blocks.all[i].device == now.device)


def _outputs(now: Situation) -> set[int]:
    return now.survey.held_by(lambda root: root.by_notebook and root.kind == OUTPUT)


def _free(now: Situation) -> Iterator[Remedy]:
    gives = _size(now, now.survey.held_by(lambda root: root.by_notebook))
    if not gives:
        if now.complete and now.unattributed >= (now.requested or 0) // 100:
            yield Remedy(
                "%gpumem free", "some of it is not referenced by any variable: garbage, perhaps"
            )
        return
    outputs = _outputs(now)
    enough = fits(now, outputs)
    why = "what the failed functions and the outputs hold; %debug has nothing to show then"
    if enough is False and gives > _size(now, outputs):
        why += ". The same cell would need it again, so do something else as well"
    yield Remedy("%gpumem free", why, gives, enough)


def _names(now: Situation) -> Iterator[Remedy]:
    """Return the smallest variable that is enough, or else the largest."""
    survey, base = now.survey, _outputs(now)
    # `%gpumem free NAME` deletes the notebook's references, too; a Future may keep the exception.
    held = survey.alone(lambda root: root.by_notebook)
    lasting = survey.alone(lambda root: root.by_notebook and root.kind == OUTPUT)
    found: list[tuple[int, str, int]] = []
    for place, gone in held.items():
        root, gives = survey.roots[place], _size(now, gone)
        if gives and not root.by_notebook and root.name.isidentifier():
            found.append((gives, root.name, place))
    found.sort(key=lambda each: -each[0])
    tried = [
        (gives, name, place, fits(now, lasting.get(place, set()) | base))
        for gives, name, place in found[:_TRIED]
    ]
    enough = [each for each in tried if each[3]]
    for gives, name, place, fit in enough[-1:] or tried[:1]:
        why = "if you can do without it"
        if not fit and held[place] != lasting.get(place):
            why += "; the failed functions had some of it, and the same cell would need it again"
        yield Remedy(f"%gpumem free {name}", why, gives, fit)


def _limit(now: Situation) -> Iterator[Remedy]:
    if now.limit is None or now.requested is None:
        return
    why = f"this process may use only {share(now.limit / now.total)} of the device"
    if LIMIT.binds(now.device):
        enough = fits(replace(now, limit=LIMIT.without(now.device)), set())
        yield Remedy("%gpumem limit off", why, None, enough)
        return
    of_the_user = f"torch.cuda.set_per_process_memory_fraction(1.0, {now.device})"
    # A limit of ours stays.
    enough = fits(replace(now, limit=None), set()) if LIMIT.size is None else None
    yield Remedy(of_the_user, why, None, enough)


def _processes(now: Situation) -> Iterator[Remedy]:
    """Return the user's own other processes, and another device where others use this one."""
    mine = [process for process in now.processes if process.memory and process.mine]
    if mine:
        # The smallest that is enough; or else the largest.
        enough = [p for p in mine if fits(now, _outputs(now), p.memory or 0)]
        process = enough[-1] if enough else mine[0]
        yield Remedy(
            f"end {process.command or 'a process'} (pid {process.pid})",
            "it is yours, and holds memory of this device",
            process.memory,
            bool(enough) if now.requested is not None else None,
        )
    if now.other_device is not None and any(p.memory and not p.mine for p in now.processes):
        yield Remedy(
            f"use cuda:{now.other_device}",
            "others hold memory of this device; that one has enough that is free",
            None,
            True,
        )


def variable() -> str:
    """Return the environment variable that this torch's allocator reads."""
    # The name without CUDA came with settings for all accelerators.
    general = hasattr(torch_cuda.c_functions(), "_accelerator_setAllocatorSettings")
    return "PYTORCH_ALLOC_CONF" if general else "PYTORCH_CUDA_ALLOC_CONF"


def _fragmentation(now: Situation) -> Iterator[Remedy]:
    if not now.fragmented:
        return
    yield Remedy(
        f"restart with {variable()}=expandable_segments:True",
        "the unused memory is in pieces that are too small; torch reads the variable when it is "
        "imported, so it is too late for this kernel",
        None,
        True,
    )


def _less(now: Situation) -> Remedy:
    if now.requested is not None and now.requested > now.total:
        return Remedy("ask for less", "the device as a whole is smaller than the request")
    return Remedy(
        "ask for less at once",
        "a smaller batch, bfloat16, torch.no_grad() where no gradient is needed, checkpointing",
    )
