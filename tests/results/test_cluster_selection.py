"""The outcome of selecting devices on the engines of a cluster."""

from __future__ import annotations

from typing import Any

from gpumagic.results import ClusterSelection, Device, EngineSelection, Selection
from tests.support.drawing import check_drawing


def selected(engine: int, status: Any, *ordinals: int | None) -> EngineSelection:
    devices = tuple(Device(i, ordinal) for i, ordinal in enumerate(ordinals))
    return EngineSelection(engine, "alpha", selection=Selection("0", {}, status, devices))


SELECTION = ClusterSelection(
    "0",
    (
        selected(0, "applied", 0),
        selected(1, "applied", 0),
        selected(2, "too-late", 0, 1, 2, 3, None),
        selected(3, "unchanged"),
        EngineSelection(4, error="the engine has died"),
    ),
    notes=("a note",),
)
SELECTIONS = """\
Engine  Host   Status     Sees
───────────────────────────────────────────────────────────────────────────────────────────────────
   0–1  alpha  applied    cuda:0 = GPU 0
     2  alpha  too-late   cuda:0 = GPU 0, cuda:1 = GPU 1, cuda:2 = GPU 2, cuda:3 = GPU 3 and 1 more
     3  alpha  unchanged  no GPU
✗ engine 4: the engine has died
a note"""


def test_drawing_of_selections() -> None:
    check_drawing(SELECTION, SELECTIONS)


def test_selections_as_data() -> None:
    assert SELECTION.too_late == (2,)
    assert SELECTION.targets == (0, 1, 2)
    assert repr(SELECTION) == "<ClusterSelection '0': 5 engines>"
