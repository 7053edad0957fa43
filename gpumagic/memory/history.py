"""Record the allocator's history within bounds; live memory by the cell that allocated it.

torch's own defaults keep all events, with C++ stacks; here only the newest events are kept, with
the Python stacks of allocations.

Which cell made an allocation is determined by the outermost frame of its stack that is a cell's own
code; where there is none (the backward threads of autograd have no Python stack) and for a cell
that was run several times, by the time of the event and the times at which cells began and ended.
"""

from __future__ import annotations

import pickle
import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from gpumagic.cells.hooks import CellHook, CellHooks
from gpumagic.cells.records import first_line
from gpumagic.cuda import failure, torch_cuda
from gpumagic.errors import DeviceError, SpecError
from gpumagic.memory.snapshot import Snapshot, parse_snapshot, read_snapshot
from gpumagic.results import CellHolding, CellHoldings, HistoryState, SnapshotFile
from gpumagic.system import text

#: The events kept on each device, by default: up to some 100 MiB of host memory.
MAX_ENTRIES = 100_000

_OUTSIDE, _BEFORE = "between two cells", "before the recording began"
_LOST = "not known: older than the events that are kept"
_LATER = "Recording begins when CUDA is first used."


@dataclass
class Run:
    """A run of a cell; its number is known for certain only at its end."""

    source: str
    number: int | None = None


@dataclass
class Cells:
    """Which cell was running when, and which cells ran the code of which file."""

    #: First lines by execution number, of the cells that have ended.
    sources: dict[int, str] = field(default_factory=dict)
    #: The cells that ran the code of a file name.
    files: dict[str, set[int]] = field(default_factory=dict)
    #: From each of the times (microseconds since the epoch) on, the cell that was running.
    times: list[int] = field(default_factory=list)
    runs: list[Run | None] = field(default_factory=list)

    def add_run(self, microseconds: int, run: Run | None) -> None:
        """Note that from this time on ``run`` is running; None for no cell."""
        self.times.append(microseconds)
        self.runs.append(run)

    def by_frames(self, frames: Sequence[Mapping[str, Any]]) -> set[int]:
        """Return the cells whose code is outermost in a stack, given innermost frame first."""
        for frame in reversed(frames):
            if frame["name"].startswith(("<module>", "<cell line")):
                cells = self.files.get(frame["filename"])
                if cells:
                    return cells
        return set()

    def at(self, microseconds: int) -> tuple[int | None, str]:
        """Return the cell that was running, and its first line or what to show instead."""
        place = bisect_right(self.times, microseconds) - 1
        if place < 0:
            return None, _BEFORE
        run = self.runs[place]
        return (None, _OUTSIDE) if run is None else (run.number, run.source)


def holdings_by_cell(
    snapshot: Snapshot, cells: Cells, max_entries: int | None
) -> dict[int, tuple[CellHolding, ...]]:
    """Return live bytes by the cell that allocated them."""
    found: dict[int, Counter[tuple[int | None, str]]] = {}
    blocks: dict[int, Counter[tuple[int | None, str]]] = {}
    times = [
        {event.address: event.microseconds for event in events if event.allocated}
        for events in snapshot.events
    ]
    full = [max_entries is None or count >= max_entries for count in snapshot.recorded]
    for block in snapshot.allocated_blocks():
        ordinal = block.device
        numbers = cells.by_frames(block.frames)
        time_us = times[ordinal].get(block.address)
        if len(numbers) == 1:
            (number,) = numbers
            cell: tuple[int | None, str] = number, cells.sources.get(number, "")
        elif time_us is not None:
            cell = cells.at(time_us)
        elif numbers:
            names = " or ".join(f"[{n}]" for n in sorted(numbers))
            cell = None, f"{names}: {cells.sources.get(max(numbers), '')}"
        else:
            cell = None, _LOST if full[ordinal] or block.frames else _BEFORE
        found.setdefault(ordinal, Counter())[cell] += block.size
        blocks.setdefault(ordinal, Counter())[cell] += 1
    return {
        ordinal: tuple(
            CellHolding(number, source, size, blocks[ordinal][number, source])
            for (number, source), size in sizes.most_common()
        )
        for ordinal, sizes in sorted(found.items())
    }


class _Begun(NamedTuple):
    """A cell that is running."""

    #: IPython's `ExecutionInfo`.
    info: Any
    run: Run
    outer: _Begun | None


class History:
    """Records the allocator's history, and which cells of a shell ran meanwhile."""

    def __init__(self, shell: Any, hooks: CellHooks) -> None:
        self._shell = shell
        self._hooks = hooks
        self._hook = CellHook(self._after, self._failed, self._before, self._cancelled)
        self._cells = Cells()
        self._innermost: _Begun | None = None
        self._own = False
        #: What torch will call when CUDA is first used; None if nothing is to be called.
        self._waiting: Callable[[], None] | None = None
        self._max_entries: int | None = None

    def state(self, message: str = "") -> HistoryState:
        """Return whether the history is recorded now, or will be as soon as CUDA is in use."""
        armed = self._waiting is not None
        recording = torch_cuda.history_is_recorded()
        own = armed or (recording and self._own)
        return HistoryState(recording, own, self._max_entries if own else None, message, armed)

    def on(self, max_entries: int = MAX_ENTRIES) -> HistoryState:
        """Begin to record; a history that is recorded already goes on as it is.

        Where CUDA is not in use yet, begin when it first is: the allocator would initialise it, and
        a later choice of GPUs would be too late.

        Raises:
            DeviceError: torch is not imported, or its allocator has no history.
        """
        if torch_cuda.loaded() is None:
            raise DeviceError("torch is not imported: there is no allocator yet to record")
        if not torch_cuda.built_with_cuda():
            raise DeviceError("this torch has no CUDA support")
        if self._waiting is not None:
            return self.state(f"It is on already: {_LATER[0].lower()}{_LATER[1:]}")
        if not torch_cuda.initialized():
            self._wait(max_entries)
            return self.state(_LATER)
        if self.state().recording:
            by = "" if self._own else ", but not by %gpumem"
            message = f"It is recorded already{by}."
            self._hooks.add(self._hook, running=True)
            return self.state(message)
        self._record(max_entries)
        self._hooks.add(self._hook, running=True)
        return self.state("Recording begins.")

    def _record(self, max_entries: int) -> None:
        try:
            torch_cuda.record_history(max_entries, stacks=True)
        except RuntimeError as error:
            raise DeviceError(_one_line(error)) from None
        self._own, self._max_entries = True, max_entries

    def _wait(self, max_entries: int) -> None:
        """Begin as torch initialises CUDA, before anything can be allocated."""
        reason = failure.why_no_gpu()
        if reason != failure.NOT_IN_USE:
            raise DeviceError(f"there is nothing to record: {reason}")

        def begin() -> None:
            if self._waiting is not begin:
                return  # cancelled
            self._waiting = None
            try:
                self._record(max_entries)
            except Exception as error:  # the user's cell is what initialises CUDA
                print(f"gpumagic: no history is recorded ({text.reason(error)})")

        self._waiting, self._max_entries = begin, max_entries
        torch_cuda.when_initialized(begin)
        self._hooks.add(self._hook, running=True)

    def _cancel_wait(self) -> None:
        """Undo `_wait`."""
        begin, self._waiting = self._waiting, None
        if begin is not None:
            torch_cuda.cancel(begin)

    def off(self) -> HistoryState:
        """Stop recording, also where the user began it, and drop what was recorded."""
        before = self.state()
        self._remove_hook()
        self._cancel_wait()
        self._own = False
        if before.armed:
            return self.state("Recording will not begin.")
        if not before.recording:
            return self.state()
        torch_cuda.stop_history()
        return self.state("Recording has ended; what was recorded is gone.")

    def release(self) -> None:
        """Undo `on`; a history that the user began goes on."""
        self._remove_hook()
        self._cancel_wait()
        if self._own and self.state().recording:
            torch_cuda.stop_history()
        self._own = False

    def cells(self) -> CellHoldings:
        """Return live bytes by the cell that allocated them.

        Raises:
            DeviceError: no history is recorded.
        """
        state = self.state()
        if not (state.recording or state.armed):
            raise DeviceError("no history is recorded; begin with: %gpumem record on")
        if not torch_cuda.initialized():
            return CellHoldings()
        try:
            snapshot = read_snapshot()
        except RuntimeError as error:
            raise DeviceError(_one_line(error)) from None
        self._number_running()
        return CellHoldings(
            holdings_by_cell(snapshot, self._cells, self._max_entries if self._own else None)
        )

    # --- the hooks ---------------------------------------------------------------------------

    def _remove_hook(self) -> None:
        self._hooks.remove(self._hook)
        self._innermost = None

    def _number_running(self) -> None:
        """Give the cell that is running its number, which its result has already."""
        result = getattr(self._shell.displayhook, "exec_result", None)
        begun = self._innermost
        while result is not None and begun is not None:
            if begun.info is result.info:
                begun.run.number = result.execution_count
            begun = begun.outer

    def _note_running(self, begun: _Begun | None) -> None:
        self._innermost = begun
        self._cells.add_run(_now(), None if begun is None else begun.run)

    def _before(self, info: Any, outer: _Begun | None) -> _Begun:
        if outer is not None and not getattr(info, "store_history", False):
            run = outer.run  # a part of the cell that runs it
        else:
            run = Run(first_line(info.raw_cell))
        begun = _Begun(info, run, outer)
        self._note_running(begun)
        return begun

    def _cancelled(self) -> None:
        self._note_running(None)

    def _failed(self, error: Exception) -> None:
        print(
            f"%gpumem cells: cells are not distinguished any more ({text.named(error)}); "
            "'%gpumem record on' starts again"
        )

    def _after(self, begun: _Begun | None, result: Any) -> None:
        if begun is None:
            return
        self._note_running(begun.outer)
        run = begun.run
        number = result.execution_count
        if number is None:
            return
        run.number = number
        self._cells.sources[number] = run.source
        # The names under which IPython has compiled the cell's code.
        names = getattr(self._shell.compile, "_filename_map", {})
        for name in [name for name, count in names.items() if count == number]:
            self._cells.files.setdefault(name, set()).add(number)


def _now() -> int:
    return time.time_ns() // 1000


def _one_line(error: BaseException) -> str:
    if torch_cuda.allocator_backend() in ("native", None):
        return f"the allocator's history cannot be read: {text.reason(error)}"
    return f"the allocator in use records no history: {text.reason(error)}"


def write_snapshot(path: Path) -> SnapshotFile:
    """Write the allocator's snapshot, as torch's memory_viz reads it.

    Raises:
        DeviceError: CUDA is not in use, or its allocator takes no snapshots.
        SpecError: the file cannot be written.
    """
    if not torch_cuda.initialized():
        raise DeviceError("CUDA is not in use in this process: there is nothing to write")
    try:
        snapshot = torch_cuda.snapshot()
    except RuntimeError as error:
        raise DeviceError(_one_line(error)) from None
    written = pickle.dumps(snapshot)
    try:
        path.write_bytes(written)
    except OSError as error:
        raise SpecError(f"cannot write {path}: {error.strerror or error}") from None
    events = sum(parse_snapshot(snapshot).recorded)
    # The dump itself is an event in newer versions of torch.
    recorded = events if torch_cuda.history_is_recorded() else 0
    return SnapshotFile(str(path), len(written), recorded)
