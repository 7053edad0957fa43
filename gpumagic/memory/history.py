"""``%gpumem record``, ``cells`` and ``snapshot``: the allocator's history, and live memory by cell.

torch's own defaults keep all events of the history, with C++ stacks; here the newest events are
kept, with the Python stacks of allocations. The cell of an allocation is the outermost frame of its
stack that is a cell's own code. Where there is none (autograd's threads have no Python stack, or
the memory is older than the recording), the cell is not known.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gpumagic.cells.every_cell import first_line
from gpumagic.cuda import no_gpu
from gpumagic.cuda.pytorch import allocator, torch_cuda
from gpumagic.errors import DeviceError
from gpumagic.results.memory.cell_holdings import CellHolding, CellHoldings
from gpumagic.results.memory.history import HistoryState, SnapshotFile
from gpumagic.system.shell import Shell
from gpumagic.system.writing import replacing

#: The events kept on each device: up to some 100 MiB of host memory.
_ENTRIES = 100_000
#: What allocations without a known cell are called, and what that means.
_UNKNOWN = "not known"
_MEANS = (
    f"{_UNKNOWN}: allocated by another thread (gradients: by autograd's), or before the recording"
)


class History:
    """Whether the allocator's history is recorded, and by whom."""

    def __init__(self) -> None:
        self._own = False

    def state(self, message: str = "") -> HistoryState:
        """Return whether the history is recorded now."""
        return HistoryState(allocator.history_is_recorded(), message)

    def on(self) -> HistoryState:
        """Begin to record; a history that is recorded already goes on as it is.

        Raises:
            DeviceError: CUDA is not in use yet, or its allocator has no history.
        """
        _require()
        if allocator.history_is_recorded():
            return self.state("It is recorded already.")
        _record("all", context="alloc", stacks="python", max_entries=_ENTRIES)
        self._own = True
        return self.state("Recording begins.")

    def off(self) -> HistoryState:
        """Stop recording, also where other code began it, and drop what was recorded."""
        recording, self._own = self.state().recording, False
        if not recording:
            return self.state()
        _record(None)
        return self.state("Recording has ended; what was recorded is gone.")

    def release(self) -> None:
        """Undo `on`; a history that other code began goes on."""
        if self._own:
            self.off()


def _record(enabled: str | None, **options: object) -> None:
    """Start or end torch's recording; either begins anew or drops what was recorded."""
    torch_cuda.module().cuda.memory._record_memory_history(enabled, **options)


def live_by_cell(shell: Shell) -> CellHoldings:
    """Return live bytes by the cell of ``shell`` that allocated them.

    Raises:
        DeviceError: no history is recorded.
    """
    _require()
    if not allocator.history_is_recorded():
        raise DeviceError("no history is recorded; begin with: %gpumem record on")
    numbers: Mapping[str, int] = getattr(shell.compile, "_filename_map", {})
    sources: Sequence[str] = shell.history_manager.input_hist_raw
    sizes: dict[int, dict[int | None, list[int]]] = {}
    for device, block in allocator.allocated_blocks():
        number = _cell(block.get("frames") or (), numbers)
        sizes.setdefault(device, {}).setdefault(number, []).append(block["size"])
    notes = (_MEANS,) if any(None in held for held in sizes.values()) else ()
    return CellHoldings(
        {
            ordinal: tuple(
                CellHolding(number, _source(number, sources), sum(blocks), len(blocks))
                for number, blocks in sorted(held.items(), key=lambda each: -sum(each[1]))
            )
            for ordinal, held in sorted(sizes.items())
        },
        notes,
    )


def _cell(frames: Sequence[Mapping[str, Any]], numbers: Mapping[str, int]) -> int | None:
    """Return the cell whose code is outermost in a stack, given innermost frame first."""
    for frame in reversed(frames):
        if frame["name"].startswith(("<module>", "<cell line")):
            number = numbers.get(frame["filename"])
            if number:
                return number
    return None


def _source(number: int | None, sources: Sequence[str]) -> str:
    if number is None:
        return _UNKNOWN
    return first_line(sources[number]) if number < len(sources) else ""


def write_snapshot(path: Path) -> SnapshotFile:
    """Write the allocator's snapshot, as torch's memory_viz reads it.

    Raises:
        DeviceError: CUDA is not in use, or its allocator takes no snapshots.
        SpecError: the file cannot be written.
    """
    _require()
    with replacing(path) as made:
        torch_cuda.module().cuda.memory._dump_snapshot(str(made))
        size = made.stat().st_size
    return SnapshotFile(str(path), size, allocator.history_is_recorded())


def _require() -> None:
    """Refuse where the allocator has no history, or is not there: to ask would initialise CUDA.

    Raises:
        DeviceError: CUDA is not in use, or its allocator has no history.
    """
    if not torch_cuda.initialized():
        if no_gpu.machine_has_none():
            raise DeviceError(f"there is no allocator to ask: {no_gpu.reason()}")
        raise DeviceError(
            "CUDA is not in use yet, so torch has no allocator to ask: write this after the first "
            "tensor on the GPU"
        )
    if why := allocator.uncounted():
        raise DeviceError(f"there is nothing to ask: {why}")
    if (backend := allocator.backend()) != "native":
        raise DeviceError(f"the allocator in use ({backend}) has no history")
