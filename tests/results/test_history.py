"""Whether the allocator's history is recorded, and a snapshot of it in a file."""

from __future__ import annotations

import pytest

from gpumagic.results import HistoryState, SnapshotFile
from tests.support.drawing import check_drawing

VERBS = (
    "'%gpumem cells' shows live memory by cell, '%gpumem snapshot FILE' writes it all, "
    "'%gpumem record off' ends it."
)


@pytest.mark.parametrize(
    ("state", "text"),
    [
        (HistoryState(False), "No history is recorded; '%gpumem record on' starts recording."),
        (HistoryState(False, message="Recording has ended."), "Recording has ended."),
        (
            HistoryState(False, armed=True, max_entries=7),
            "Recording begins when CUDA is first used.\n"
            "The newest 7 events will be recorded on each device; "
            "'%gpumem record off' cancels that.",
        ),
        (
            HistoryState(True, own=True, max_entries=7, message="Recording begins."),
            "Recording begins.\n"
            f"The allocator's history is recorded, the newest 7 events on each device. {VERBS}",
        ),
        (
            HistoryState(True),
            f"The allocator's history is recorded, within limits that other code set. {VERBS}",
        ),
    ],
)
def test_drawing_of_the_state(state: HistoryState, text: str) -> None:
    check_drawing(state, text, width=300)


@pytest.mark.parametrize(
    ("events", "expected", "last"),
    [
        (
            0,
            "no history, only live memory",
            "For a timeline with stacks, '%gpumem record on' first.",
        ),
        (1, "1 event", None),
        (1200, "1,200 events", None),
    ],
)
def test_drawing_of_a_snapshot(events: int, expected: str, last: str | None) -> None:
    viewer = (
        "To view it, drop the file on https://docs.pytorch.org/memory_viz; "
        "it stays on your machine."
    )
    lines = [f"Written to a.pickle (2.00 KiB): {expected}.", viewer, *([last] if last else [])]
    check_drawing(SnapshotFile("a.pickle", 2048, events), "\n".join(lines))


def test_repr() -> None:
    states = (HistoryState(True), HistoryState(False, armed=True), HistoryState(False))
    assert [repr(state) for state in states] == [
        f"<HistoryState: {word}>" for word in ("recording", "armed", "off")
    ]
    assert repr(SnapshotFile("a", 1, 1)) == "<SnapshotFile 'a': 1 event>"
