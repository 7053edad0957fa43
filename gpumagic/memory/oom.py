"""Explain an out-of-memory error: the request, what holds the memory, and what helps.

Called while the exception is alive: its frames still hold the failed functions' variables. The
result holds nothing of the exception: it has only numbers and strings.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from gpumagic.cells import tracebacks
from gpumagic.cuda import allocator, devices, torch_cuda
from gpumagic.memory.allocator_blocks import Blocks, UnreadableError
from gpumagic.memory.attribution import Survey
from gpumagic.memory.notebook_references import NotebookReferences
from gpumagic.memory.remedies import Situation, remedies
from gpumagic.memory.start_counters import Counts, StartCounters, allocated_since, failed_since
from gpumagic.results import Device, Explanation, OutOfMemory, Process
from gpumagic.system import introspection

#: Seconds of CPU time that the walk over the user's objects may take; the report stays below 0.3.
WALK = 0.12
#: The most holders that are named.
_HOLDERS = 6

#: Bounded, as are all patterns here: the text may be of any length and any origin.
_SIZE = r"(\d{1,20}(?:\.\d{1,6})?) (bytes|KiB|MiB|GiB|TiB)"
_UNITS = {"bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
#: As CUDACachingAllocator.cpp and CUDAMallocAsyncAllocator.cpp write their messages.
_REQUESTED = re.compile(rf"(?:Tried to allocate|Requested {{0,9}}:) {_SIZE}")
_DEVICE = re.compile(r"(?:\bGPU|on device) (\d{1,4})\b")
_ALLOCATED = re.compile(rf"Of the allocated memory {_SIZE} is allocated by PyTorch")
_UNUSED = re.compile(rf"{_SIZE} is reserved by PyTorch but unallocated")
_FREE = re.compile(rf"(?:of which {_SIZE} is free|Free \(according to CUDA\): {_SIZE})")
#: The one request that torch refuses before it counts it as a failure.
_TOO_LARGE = "Tried to allocate more than 1EB memory"


def find(error: BaseException) -> BaseException | None:
    """Return the out-of-memory error in an exception, its causes and contexts, or its group.

    Only where the traceback shows it: ``raise … from None`` hides it.
    """
    torch = torch_cuda.loaded()
    if torch is None:
        return None
    kind = getattr(torch, "OutOfMemoryError", None) or torch.cuda.OutOfMemoryError
    shown = introspection.linked(error, shown=True)
    return next((each for each in shown if introspection.is_a(each, kind)), None)


def elsewhere(error: BaseException, begun: StartCounters | None = None) -> Explanation | None:
    """Return a line on an out-of-memory error that no allocation of this process has raised.

    It may be a worker's that is raised again here, or one that code raised itself: what this
    process holds explains neither. The allocator counts its failures.

    Args:
        error: The cell's exception.
        begun: The counters as the cell began, if they were read.
    """
    found = find(error)
    failed = failed_since(begun)
    if found is None or failed is None or _TOO_LARGE in (text := introspection.message(found)):
        return None
    match = _DEVICE.search(text)
    if int(match.group(1)) in failed if match else failed:
        return None
    if failed_since(None):
        here, whence = "failed in this cell", "or from before"
    else:
        here, whence = "has failed", "a worker perhaps, or was raised by hand"
    return Explanation(
        f"gpumagic: no allocation of this process {here}: the out-of-memory error comes from "
        f"another process, {whence}."
    )


def explain(
    error: BaseException, shell: Any, begun: StartCounters | None = None
) -> OutOfMemory | None:
    """Return why the memory ran out; None if the exception is no out-of-memory error.

    Args:
        error: The cell's exception.
        shell: IPython's.
        begun: The counters as the cell began, if they were read.
    """
    found = find(error)
    if found is None:
        return None
    text = introspection.message(found)
    where, source = _place(found, error, NotebookReferences(shell))
    known = OutOfMemory(
        device=_device(text), requested=_size(_REQUESTED, text), where=where, source=source
    )
    if known.device is None:
        return known
    try:
        survey = Survey.make(shell=shell, seconds=WALK)
    except UnreadableError:
        return known
    return _report(survey, known, known.device, text, begun)


def _report(
    survey: Survey, known: OutOfMemory, device: int, text: str, begun: StartCounters | None
) -> OutOfMemory:
    """Return ``known`` with the figures of the device, what holds its memory, and the remedies."""
    blocks, requested = survey.blocks, known.requested
    account = survey.result()
    held = account.devices.get(device)
    holders = [h for h in held.holders if h.bytes] if held else []
    reserved, allocated = blocks.reserved.get(device, 0), blocks.allocated.get(device, 0)
    table = devices.devices(processes=True)
    listed = _listed(table, device)
    used = None if listed is None else listed.memory_own
    processes = _other_processes(listed)
    free, total = torch_cuda.memory_info(device)
    limit = allocator.memory_limit(device)
    limit = limit if limit is not None and limit < total * 0.999 else None
    expandable = _is_expandable(blocks, device)
    fragmented = _is_fragmented(blocks, device, text, requested, free, limit)
    own, released = _of_the_cell(_size(_ALLOCATED, text), begun, device, allocated)
    complete = not survey.walked.incomplete
    situation = Situation(
        survey=survey,
        device=device,
        requested=requested,
        free=free,
        total=total,
        limit=limit,
        fragmented=bool(fragmented),
        unattributed=held.unattributed if held else 0,
        complete=complete,
        own=own,
        released=released,
        processes=processes,
        other_device=_device_with(table, device, requested),
    )
    pinned = survey.held_by(lambda root: root.by_notebook)
    return replace(
        known,
        name=None if listed is None else listed.name,
        total=total,
        free=free,
        reserved=reserved,
        allocated=allocated,
        outside=None if used is None or used < reserved else used - reserved,
        others=None if listed is None else listed.memory_others,
        processes=processes,
        largest_free=blocks.largest_free(device) if blocks.exact else None,
        limit=limit,
        fragmented=fragmented,
        fragmentation="expandable" if expandable else "too-late" if fragmented else "",
        holders=tuple(holders[:_HOLDERS]),
        more_holders=len(holders[_HOLDERS:]),
        more_bytes=sum(h.bytes for h in holders[_HOLDERS:]),
        unattributed=held.unattributed if held else None,
        recoverable=sum(blocks.all[i].size for i in pinned if blocks.all[i].device == device),
        remedies=remedies(situation),
        complete=complete,
        notes=account.notes,
    )


def _is_expandable(blocks: Blocks, device: int) -> bool:
    return any(segment.expandable for segment in blocks.segments if segment.device == device)


def _is_fragmented(
    blocks: Blocks, device: int, text: str, requested: int | None, free: int, limit: int | None
) -> bool | None:
    """Return whether the request failed though there was enough unused memory; None if unknown."""
    if requested is None or not blocks.exact:
        return None
    if _is_expandable(blocks, device):
        return False
    reserved = blocks.reserved.get(device, 0)
    unused = _size(_UNUSED, text)
    if unused is None:
        unused = reserved - blocks.allocated.get(device, 0)
    # Unused memory of a private pool cannot serve the request.
    private = (s for s in blocks.segments if s.device == device and s.private)
    unused -= sum(block.size for s in private for block in s.blocks if not block.allocated)
    free_then = _size(_FREE, text)
    available = free if free_then is None else free_then
    if limit is not None:
        available = min(available, max(limit - reserved, 0))
    # A margin: the message gives two decimals, and blocks are rounded up.
    if unused <= 0 or unused + available < requested * 1.01:
        return False
    # Where a large piece is free now, much has been freed since: it is not known how it was then.
    return None if blocks.largest_free(device) >= requested else True


def _of_the_cell(
    then: int | None, begun: StartCounters | None, device: int, now: int
) -> tuple[int | None, int]:
    """Return what the cell had allocated when it failed, at most, and what of it was freed since.

    By what was allocated ``then``, when it began, and ``now``. None where it is not known what the
    cell had allocated: then all that was freed may have been its own.
    """
    if then is None:
        return None, 0
    if begun is None:
        return None, max(0, then - now)
    since, before = allocated_since(begun, device), begun.get(device, Counts()).allocated
    own = max(0, then - before)
    released = own - min(max(0, now - before), own)
    return then if since is None else min(then, since), released


# --- the exception -------------------------------------------------------------------------------


def _size(pattern: re.Pattern[str], text: str) -> int | None:
    match = pattern.search(text)
    if match is None:
        return None
    number, unit = [group for group in match.groups() if group is not None]
    return round(float(number) * _UNITS[unit])


def _device(text: str) -> int | None:
    """Return the CUDA ordinal that a message names, or the only one in use."""
    match = _DEVICE.search(text)
    used = torch_cuda.contexts()
    if match is None:
        return used[0] if len(used) == 1 else None
    return int(match.group(1)) if int(match.group(1)) in used else None


def _place(
    found: BaseException, error: BaseException, notebook: NotebookReferences
) -> tuple[str | None, str | None]:
    """Return the innermost line of the user's in the traceback, and its source."""
    for each in (found, error):
        for frame, line in reversed(list(tracebacks.steps(introspection.traceback(each)))):
            if tracebacks.is_users(frame.f_code.co_filename, notebook.cell_of):
                where = tracebacks.described(frame, line, notebook.cell_of)
                return where, tracebacks.source(frame, line)
    return None, None


# --- the devices ---------------------------------------------------------------------------------


def _listed(table: Iterable[Device], ordinal: int) -> Device | None:
    """Return NVML's entry of a device, or of the MIG instance that is visible; or None."""
    return next((device.as_seen() for device in table if device.ordinal == ordinal), None)


def _device_with(table: Iterable[Device], ordinal: int, requested: int | None) -> int | None:
    """Return the other visible device with the most free memory, if that is enough."""
    free = {
        device.ordinal: device.as_seen().memory_free or 0
        for device in table
        if device.ordinal is not None and device.ordinal != ordinal
    }
    most = max(free, key=lambda each: free[each], default=None)
    return None if requested is None or most is None or free[most] < requested else most


def _other_processes(device: Device | None) -> tuple[Process, ...]:
    """Return the other processes on a device, the largest first."""
    if device is None or not device.processes:
        return ()
    others = [process for process in device.processes if process.own is False]
    return tuple(sorted(others, key=lambda process: -(process.memory or 0)))
