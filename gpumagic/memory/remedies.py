"""What helps against an out-of-memory error, the smallest remedy first.

A remedy is enough if the failed request would then fit. What the failed functions had allocated
counts as taken: the same cell would allocate it again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gpumagic import torch_cuda
from gpumagic.memory.holding import Survey
from gpumagic.memory.pinned import OUTPUT
from gpumagic.results import Process, Remedy

#: So many variables are looked at, the largest.
_TRIED = 20


@dataclass(frozen=True)
class Situation:
    """What the remedies are chosen from. Bytes."""

    survey: Survey
    device: int
    requested: int | None
    free: int
    total: int
    limit: int | None
    fragmented: bool
    #: What no name leads to.
    unattributed: int
    #: Of others, on this device.
    processes: tuple[Process, ...]
    #: Another ordinal with enough free memory for the request; None if none is known.
    roomier: int | None = None


def remedies(now: Situation) -> tuple[Remedy, ...]:
    """The remedies, from what costs nothing to what costs most."""
    if fits(now, set()):  # it came free when the exception took the place of the one before
        again = Remedy("run the cell again", "memory has come free since it failed", None, True)
        return (again, *_free(now), _less(now))
    found = [
        *_free(now),
        *_names(now),
        *_limit(now),
        *_processes(now),
        *_fragmentation(now),
    ]
    return (*found, _less(now))


def fits(now: Situation, gone: set[int], more: int = 0) -> bool | None:
    """Whether the request fits once the blocks ``gone`` are freed and ``more`` bytes appear."""
    if now.requested is None:
        return None
    blocks = now.survey.blocks
    reserved = blocks.without(gone)[1][now.device]
    free = now.free + blocks.reserved[now.device] - reserved + more
    if now.limit is not None:
        free = min(free, now.limit - reserved)
    return max(free, blocks.largest_free(now.device, gone)) >= now.requested


def _given(now: Situation, gone: set[int]) -> int:
    blocks = now.survey.blocks
    return sum(blocks.all[i].size for i in gone if blocks.all[i].device == now.device)


def _outputs(now: Situation) -> set[int]:
    return now.survey.held_by(lambda root: root.pinned and root.kind == OUTPUT)


def _free(now: Situation) -> Iterator[Remedy]:
    gives = _given(now, now.survey.held_by(lambda root: root.pinned))
    if not gives:
        if now.unattributed >= (now.requested or 0) // 100:
            yield Remedy("%gpumem free", "no name leads to some of it: garbage, perhaps")
        return
    outputs = _outputs(now)
    enough = fits(now, outputs)
    why = "what the failed functions and the outputs hold; %debug has nothing to show then"
    if enough is False and gives > _given(now, outputs):
        why += ". The same cell would need it again, so do something else as well"
    yield Remedy("%gpumem free", why, gives, enough)


def _names(now: Situation) -> Iterator[Remedy]:
    """The smallest variable that is enough; or else the largest."""
    survey, base = now.survey, _outputs(now)
    # To free a variable lets go of what is pinned, too; a Future may keep the very exception.
    held = survey.alone(lambda root: root.pinned)
    lasting = survey.alone(lambda root: root.pinned and root.kind == OUTPUT)
    found: list[tuple[int, str, int]] = []
    for place, gone in held.items():
        root, gives = survey.roots[place], _given(now, gone)
        if gives and not root.pinned and root.name.isidentifier():
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
    enough = max(now.free, 0) >= now.requested
    why = f"this process may use only {now.limit / now.total:.0%} of the device"
    yield Remedy("torch.cuda.set_per_process_memory_fraction(1.0)", why, None, enough)


def _processes(now: Situation) -> Iterator[Remedy]:
    """One's own other processes; what belongs to others is theirs to end."""
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
    if now.roomier is not None and any(p.memory and not p.mine for p in now.processes):
        yield Remedy(
            f"use cuda:{now.roomier}",
            "others hold memory of this device; that one has enough that is free",
            None,
            True,
        )


def variable() -> str:
    """The variable that this torch's allocator reads."""
    # The one without CUDA in its name came with the settings of all accelerators.
    general = hasattr(torch_cuda.c_functions(), "_accelerator_setAllocatorSettings")
    return "PYTORCH_ALLOC_CONF" if general else "PYTORCH_CUDA_ALLOC_CONF"


def _fragmentation(now: Situation) -> Iterator[Remedy]:
    if not now.fragmented:
        return
    yield Remedy(
        f"restart with {variable()}=expandable_segments:True",
        "the unused memory lies in pieces that are too small; torch reads the variable when it is "
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
