"""Explain an out-of-memory error: the request, the device, what holds its memory, what helps.

Called while the exception is alive: its frames still hold the failed functions' variables. The
result holds nothing of the exception: it has only numbers and strings.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from traceback import walk_tb
from typing import Any

from gpumagic.cells import tracebacks
from gpumagic.cuda.pytorch import allocator, torch_cuda
from gpumagic.memory.holders import Survey
from gpumagic.memory.limit import LIMIT, memory_limit
from gpumagic.memory.objects.blocks import UnreadableError
from gpumagic.memory.objects.ipython_references import NotebookReferences
from gpumagic.memory.objects.walk import collector_paused
from gpumagic.results.base import Explanation
from gpumagic.results.memory.out_of_memory import OutOfMemory
from gpumagic.system import introspection
from gpumagic.system.shell import Shell

#: Seconds of CPU time that the walk over the user's objects may take; the report stays below 0.3,
#: unless memory that no variable holds would have been enough.
WALK = 0.12

#: Bounded, as are all patterns here: the text may be of any length and any origin.
_SIZE = r"(?<!\d)(\d{1,20}(?:\.\d{1,6})?) (bytes|KiB|MiB|GiB|TiB)"
_UNITS = {"bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
#: As CUDACachingAllocator.cpp and CUDAMallocAsyncAllocator.cpp write their messages.
_REQUESTED = re.compile(rf"(?:Tried to allocate|Requested {{0,9}}:) {_SIZE}")
_DEVICE = re.compile(r"(?:\bGPU|on device) (\d{1,4})\b")
_FREE = re.compile(rf"of which {_SIZE} is free")
_UNUSED = re.compile(rf"{_SIZE} is reserved by PyTorch but unallocated")
_ALLOCATED = re.compile(rf"{_SIZE} is allocated by PyTorch")
_OWN = re.compile(rf"this process has {_SIZE} memory in use")
_OTHER = re.compile(rf"Process \d{{1,10}} has {_SIZE} memory in use")
_HINT = re.compile(r"PYTORCH_\w{0,20}CONF=expandable_segments:True")
#: The one request that torch refuses before it counts it as a failure.
_TOO_LARGE = "Tried to allocate more than 1EB memory"


def find(error: BaseException) -> BaseException | None:
    """Return the out-of-memory error in an exception, its causes and contexts, or its group.

    Only where the traceback shows it: ``raise … from None`` hides it.
    """
    torch: Any = torch_cuda.loaded()
    if torch is None:
        return None
    kind, shown = torch.cuda.OutOfMemoryError, introspection.linked(error, shown=True)
    return next((each for each in shown if introspection.is_a(each, kind)), None)


@collector_paused()
def explain(error: BaseException, shell: Shell) -> OutOfMemory | Explanation | None:
    """Return why the memory ran out; None if the exception is no out-of-memory error.

    An `Explanation` where no allocation of this process has failed: what it holds explains nothing.
    """
    found = find(error)
    if found is None:
        return None
    text = introspection.message(found)
    device = _device(text)
    if not _has_failed(device) and _TOO_LARGE not in text:
        return Explanation(
            "gpumagic: no allocation of this process has failed: the out-of-memory error comes "
            "from another process, a worker perhaps, or was raised by hand."
        )
    notebook, requested = NotebookReferences(shell), _size(_REQUESTED, text)
    place = _place(found, error, notebook)
    known = OutOfMemory(device, None, requested, *place, rounded_by=_rounding(text))
    if device is None:
        return known
    known = _with_figures(known, device, text)
    try:
        survey = Survey.make(shell=shell, seconds=WALK)
    except UnreadableError:
        return known
    assigned = (name for each in (found, error) for name in _assigned(each, notebook))
    return _with_holders(known, device, survey, assigned)


def _with_figures(known: OutOfMemory, device: int, text: str) -> OutOfMemory:
    """Return the report with the device's figures; NVML is not started for them.

    Those of processes are from torch's message; the others, too, where memory was freed since.
    """
    free, total = torch_cuda.memory_info(device)
    limit = memory_limit(device)
    allocated, reserved = allocator.held(device)
    own, live, unused = (_size(each, text) for each in (_OWN, _ALLOCATED, _UNUSED))
    hint, now, outside = _HINT.search(text), None, None
    if own is not None and live is not None and unused is not None:
        outside = max(own - live - unused, 0)
    if live is not None and allocated < live * 0.99:
        now, allocated, reserved = allocated, live, live + (unused or 0)
        free = _size(_FREE, text) or free
    return replace(
        known,
        name=torch_cuda.name(device),
        total=total,
        free=free,
        reserved=reserved,
        allocated=allocated,
        allocated_now=now,
        outside=outside,
        # Where this process is not among those listed, it may be one of them.
        others=None if own is None else sum(_sizes(_OTHER, text)),
        limit=limit if limit is not None and limit < total * 0.999 else None,
        fragmented=hint[0] if hint and unused and unused >= (known.requested or math.inf) else None,
    )


def _with_holders(
    known: OutOfMemory, device: int, survey: Survey, assigned: Iterable[str]
) -> OutOfMemory:
    """Return the report with what holds the device's memory, and what can be given back.

    ``assigned`` are the variables that the cell was about to assign.
    """
    account = survey.result()
    held = account.devices[device]

    def gives(*names: str) -> int:
        """Return the bytes that ``%gpumem free NAMES`` would give back."""
        blocks = (block for block in survey.freed(names) if block.device == device)
        return sum(block.size for block in blocks) + (held.garbage or 0)

    if (known.missing or math.inf) <= held.unattributed + gives():  # it takes some time
        account = survey.result(survey.unreferenced())
        held = account.devices[device]
    known = replace(
        known,
        holders=tuple(holder for holder in held.holders if holder.bytes),
        unattributed=None if survey.missed else held.unattributed,
        garbage=held.garbage or 0,
        recoverable=gives(),
        notes=(*account.notes, *_lifted(known)),
    )
    for name in assigned:
        if gives(name) - gives() >= (known.missing or math.inf):
            return replace(known, replaced=name, with_replaced=gives(name))
    return known


def _lifted(known: OutOfMemory) -> Iterator[str]:
    """Yield what lifts the limit, if it is ours."""
    limits = LIMIT.limits()
    if known.device in {*limits.devices}.difference(limits.by_fraction):
        yield "'%gpumem limit off' lifts the limit of this process"


def _has_failed(device: int | None) -> bool:
    """Return whether an allocation on a device, or on any, has failed; True if not known."""
    if allocator.backend() not in (None, "native"):
        return True
    ordinals = torch_cuda.contexts() if device is None else (device,)
    return any(allocator.stats(ordinal)["num_ooms"] for ordinal in ordinals)


def _size(pattern: re.Pattern[str], text: str) -> int | None:
    return next(_sizes(pattern, text), None)


def _rounding(text: str) -> int:
    """Return the bytes by which more, or less, may have been requested: half a hundredth."""
    match = _REQUESTED.search(text)
    return 0 if match is None or match[2] == "bytes" else _UNITS[match[2]] // 200


def _sizes(pattern: re.Pattern[str], text: str) -> Iterator[int]:
    """Yield the bytes of each match of a pattern that has `_SIZE`."""
    for match in pattern.finditer(text):
        yield round(float(match[1]) * _UNITS[match[2]])


def _device(text: str) -> int | None:
    """Return the CUDA ordinal that a message names, or the only one in use."""
    match, used = _DEVICE.search(text), torch_cuda.contexts()
    if match is None:
        return used[0] if len(used) == 1 else None
    return int(match[1]) if int(match[1]) in used else None


def _place(
    found: BaseException, error: BaseException, notebook: NotebookReferences
) -> tuple[str | None, str | None]:
    """Return the innermost line of the user's in the traceback, and its source."""
    for each in (found, error):
        for frame, line in reversed(list(walk_tb(introspection.traceback(each)))):
            if tracebacks.is_users(frame.f_code.co_filename, notebook.cell_of):
                where = tracebacks.described(frame, line, notebook.cell_of)
                return where, tracebacks.source(frame, line)
    return None, None


def _assigned(error: BaseException, notebook: NotebookReferences) -> Iterator[str]:
    """Yield the variables that the failed cell was about to assign."""
    step = introspection.traceback(error)
    while step is not None:
        if notebook.cell_of(step.tb_frame.f_code.co_filename) is not None:
            yield from tracebacks.assigned(step)
        step = step.tb_next
