"""torch's record of its allocator's history, within bounds; live memory by the cell that made it.

torch's own defaults keep all events, with C++ stacks; here the newest events are kept, with the
Python stacks of allocations. The cell of an allocation is the outermost frame of its stack that is
a cell's own code. Where there is none (autograd's threads have no Python stack, or the memory is
older than the recording), the cell is not known.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

from gpumagic.cells.records import first_line
from gpumagic.cuda import torch_cuda
from gpumagic.errors import DeviceError, SpecError
from gpumagic.results.allocator import HistoryState, SnapshotFile
from gpumagic.results.holders import CellHolding, CellHoldings
from gpumagic.system import text

#: The events kept on each device: up to some 100 MiB of host memory.
_ENTRIES = 100_000
_UNKNOWN = "not known: from before the recording, or of another thread"


class History:
    """Whether the allocator's history is recorded, and by whom."""

    def __init__(self) -> None:
        self._own = False

    def state(self, message: str = "") -> HistoryState:
        """Return whether the history is recorded now."""
        recording = torch_cuda.history_is_recorded()
        return HistoryState(recording, recording and self._own, message)

    def on(self) -> HistoryState:
        """Begin to record; a history that is recorded already goes on as it is.

        Raises:
            DeviceError: CUDA is not in use yet, or its allocator has no history.
        """
        _require()
        if self.state().recording:
            by = "" if self._own else ", but not by %gpumem"
            return self.state(f"It is recorded already{by}.")
        with _readable():
            torch_cuda.record_history(_ENTRIES, stacks=True)
        self._own = True
        return self.state("Recording begins.")

    def off(self) -> HistoryState:
        """Stop recording, also where other code began it, and drop what was recorded."""
        recording, self._own = self.state().recording, False
        if not recording:
            return self.state()
        torch_cuda.stop_history()
        return self.state("Recording has ended; what was recorded is gone.")

    def release(self) -> None:
        """Undo `on`; a history that other code began goes on."""
        if self._own:
            self.off()


def live_by_cell(shell: Any) -> CellHoldings:
    """Return live bytes by the cell of ``shell`` that allocated them.

    Raises:
        DeviceError: no history is recorded.
    """
    _require()
    if not torch_cuda.history_is_recorded():
        raise DeviceError("no history is recorded; begin with: %gpumem record on")
    numbers: Mapping[str, int] = getattr(shell.compile, "_filename_map", {})
    sources: Sequence[str] = shell.history_manager.input_hist_raw
    sizes: dict[int, dict[int | None, list[int]]] = {}
    with _readable():
        segments = torch_cuda.memory_snapshot()
    for segment in segments:
        for block in segment["blocks"]:
            if block["state"] == "active_allocated":
                number = _cell(block.get("frames") or (), numbers)
                of_device = sizes.setdefault(segment["device"], {})
                of_device.setdefault(number, []).append(block["size"])
    return CellHoldings(
        {
            ordinal: tuple(
                CellHolding(number, _source(number, sources), sum(blocks), len(blocks))
                for number, blocks in sorted(held.items(), key=lambda each: -sum(each[1]))
            )
            for ordinal, held in sorted(sizes.items())
        }
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
    try:
        with _readable():
            cast(Any, torch_cuda.loaded()).cuda.memory._dump_snapshot(str(path))
        size = path.stat().st_size
    except OSError as error:
        raise SpecError(f"cannot write {path}: {error.strerror or error}") from None
    return SnapshotFile(str(path), size, torch_cuda.history_is_recorded())


def _require() -> None:
    """Refuse where the allocator is not there: to ask it would initialise CUDA.

    Raises:
        DeviceError: CUDA is not in use.
    """
    if not torch_cuda.initialized():
        raise DeviceError(
            "CUDA is not in use yet, so torch has no allocator to ask: write this after the first "
            "tensor on the GPU"
        )


@contextmanager
def _readable() -> Iterator[None]:
    """Turn the error of an allocator that has no history into a `DeviceError`."""
    try:
        yield
    except RuntimeError as error:
        raise DeviceError(f"the allocator in use has no history: {text.reason(error)}") from None
