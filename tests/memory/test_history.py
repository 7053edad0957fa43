"""Live memory by cell: by the frames of its allocation, or by its time."""

from __future__ import annotations

from typing import Any

from gpumagic.memory.history import Cells, Run, holdings_by_cell
from gpumagic.memory.snapshot import parse_snapshot
from gpumagic.results import CellHolding


def snapshot(blocks: list[tuple[int, int, list[str]]], events: list[tuple[int, int]]) -> Any:
    """Blocks as (address, size, files of frames), events as (address, time)."""
    return {
        "segments": [
            {
                "device": 0,
                "total_size": 1000,
                "blocks": [
                    {
                        "address": address,
                        "size": size,
                        "state": "active_allocated",
                        "frames": [{"name": "<module>", "filename": f, "line": 1} for f in files],
                    }
                    for address, size, files in blocks
                ]
                + [{"address": 99, "size": 1, "state": "inactive", "frames": []}],
            }
        ],
        "device_traces": [
            [{"action": "alloc", "addr": address, "time_us": time} for address, time in events]
        ],
    }


def test_holdings_by_frames_and_by_time() -> None:
    cells = Cells(sources={3: "a", 7: "b"}, files={"one": {3}, "two": {3, 7}})
    cells.add_run(100, Run("b", 7))
    cells.add_run(200, None)
    blocks = [
        (1, 10, ["lib", "one"]),
        (2, 20, ["two"]),
        (3, 40, []),
        (4, 80, ["two"]),
        (5, 160, []),
    ]
    events = [(2, 150), (3, 250), (9, 300)]
    found = holdings_by_cell(parse_snapshot(snapshot(blocks, events)), cells, 3)[0]
    assert found == (
        CellHolding(None, "not known: older than the events that are kept", 160, 1),
        CellHolding(None, "[3] or [7]: b", 80, 1),
        CellHolding(None, "between two cells", 40, 1),
        CellHolding(7, "b", 20, 1),
        CellHolding(3, "a", 10, 1),
    )
    found = holdings_by_cell(parse_snapshot(snapshot(blocks, events)), cells, 4)[0]
    assert found[0].source == "before the recording began"


def test_the_time_before_the_first_cell() -> None:
    cells = Cells()
    assert cells.at(5) == (None, "before the recording began")
