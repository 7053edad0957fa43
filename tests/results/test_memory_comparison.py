"""The table of peaks compared with stored ones."""

from __future__ import annotations

from gpumagic.results.memory_comparison import MemoryComparison


def test_the_table() -> None:
    shown = str(
        MemoryComparison({0: (3 * 2**20, 2 * 2**20), 1: (2**10, 0), 2: (1, 2)}, ("a note",))
    )
    assert [line.split() for line in shown.splitlines()] == [
        ["Device", "Peak", "Stored", "Change"],
        [shown.splitlines()[1].strip()],
        ["cuda:0", "3.00", "MiB", "2.00", "MiB", "+50.0", "%"],
        ["cuda:1", "1.00", "KiB", "0", "B", "–"],
        ["cuda:2", "1", "B", "2", "B", "−50.0", "%"],
        ["a", "note"],
    ]
