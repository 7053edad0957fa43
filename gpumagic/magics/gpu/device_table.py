"""``%gpu`` and ``%gpu -p``: the table of devices."""

from __future__ import annotations

import sys
from dataclasses import replace

from gpumagic.cuda import failure
from gpumagic.results.devices import DeviceTable
from gpumagic.selection import gate
from gpumagic.selection.claims import devices


def table(*, processes: bool) -> DeviceTable:
    """Return the table; check whether CUDA has failed where it may have, which can take seconds."""
    found = devices(processes=processes)
    if not found.cuda_failed and failure.has_failed(found):
        found = devices(processes=processes)
    return replace(found, gated=gate.is_closed(), notes=(*found.notes, *_notes()))


def _notes() -> list[str]:
    """Return lines on this process: a context that is destroyed, memory that is parked."""
    notes = [failure.dead_context_note()]
    if "gpumagic.memory.parking" in sys.modules:
        from gpumagic.memory.parking import PARKING

        notes.append(PARKING.note() if PARKING.active else None)
    return [note for note in notes if note is not None]
