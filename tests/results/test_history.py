"""Whether the allocator's history is recorded, and a snapshot of it in a file."""

from __future__ import annotations

import pytest

from gpumagic.results import HistoryState
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
