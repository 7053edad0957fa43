"""How the allocator's history is shown."""

from __future__ import annotations

from gpumagic.render.blocks import Block, Line
from gpumagic.render.units import bytes_
from gpumagic.results import HistoryState, SnapshotFile

_VIZ = "https://docs.pytorch.org/memory_viz"


def history_state(result: HistoryState) -> list[Block]:
    """The blocks of a `HistoryState`."""
    blocks: list[Block] = [Line.of(result.message)] if result.message else []
    if result.armed:
        kept = f"The newest {result.max_entries} events will be kept on each device; "
        blocks = blocks or [Line.of("Recording begins when CUDA is first used.")]
        return [*blocks, Line.of(f"{kept}'%gpumem record off' takes that back.", "dim")]
    if not result.recording:
        hint = "No history is recorded; '%gpumem record on' begins to record one."
        return blocks or [Line.of(hint)]
    kept = (
        "somebody else's bounds hold"
        if result.max_entries is None
        else f"the newest {result.max_entries} events are kept on each device"
    )
    return [
        *blocks,
        Line.of(
            f"The allocator's history is recorded: {kept}. '%gpumem cells' shows live memory by "
            "cell, '%gpumem snapshot FILE' writes it all, '%gpumem record off' ends it.",
            "dim",
        ),
    ]


def snapshot_file(result: SnapshotFile) -> list[Block]:
    """The blocks of a `SnapshotFile`."""
    what = f"{result.events} events" if result.events else "no history, only what is held now"
    blocks: list[Block] = [
        Line.of(f"Written to {result.path} ({bytes_(result.size)}): {what}."),
        Line.of(f"To view it, drop the file on {_VIZ}; it stays on your machine.", "dim"),
    ]
    if not result.events:
        blocks.append(Line.of("For a timeline with stacks, '%gpumem record on' first.", "dim"))
    return blocks
