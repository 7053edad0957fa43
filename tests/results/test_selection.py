"""The outcome of selecting devices."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpumagic.render.colors import STATES
from gpumagic.results.base import as_html, as_text
from gpumagic.results.devices import Device
from gpumagic.results.selection import Selection
from tests.results.examples import LATE
from tests.support.drawing import check_drawing

GIB = 2**30


MASK = {"CUDA_VISIBLE_DEVICES": "0"}


@pytest.mark.parametrize(
    ("selection", "text"),
    [
        (
            Selection("0", {"CUDA_VISIBLE_DEVICES": None}, "too-late"),
            "too-late: this process still sees no GPU  (CUDA_VISIBLE_DEVICES is not set)",
        ),
        (
            Selection("0", MASK, "gated", (Device(0, ordinal=0, name="A"),)),
            "gated: this process sees 1 GPU\n  cuda:0 is GPU 0, A",
        ),
        (
            Selection("0", MASK, "unchanged", devices_known=False),
            "unchanged: what this process sees is not known before CUDA starts  "
            "(CUDA_VISIBLE_DEVICES=0)",
        ),
    ],
)
def test_drawing_of_a_status(selection: Selection, text: str) -> None:
    check_drawing(selection, text)


def test_where_there_is_no_gpu_nothing_is_said_to_be_applied() -> None:
    none = Selection("off", {"CUDA_VISIBLE_DEVICES": None}, "unchanged", no_gpu="no driver")
    text = "unchanged: this machine has no GPU that CUDA can use (no driver)"
    check_drawing(none, text)
    check_drawing(replace(none, notes=("CPU: 2 cores",)), f"{text}\nCPU: 2 cores")
    assert STATES["good"] in as_html(none)
    assert STATES["warn"] in as_html(replace(none, status="gated"))


TOO_LATE = """\
┃ ✗ Too late for 'off': torch has initialised CUDA
┃ CUDA was initialised while cell [2] ran x = f() (line 3).
┃ To change that:
┃ %gpu off --restart  a fresh process
┃ %gpu off --soft     nothing is lost
This process still sees 1 GPU
New child processes: CUDA_VISIBLE_DEVICES=-1"""


def test_too_late_is_a_callout_with_commands_to_copy() -> None:
    """It is said once, and nowhere else."""
    for shown in (as_text(LATE), as_html(LATE)):
        assert shown.lower().replace("-", " ").count("too late") == 1
        assert shown.count("CUDA_VISIBLE_DEVICES") == 1
    check_drawing(LATE, TOO_LATE)
    html = as_html(LATE)
    assert ">x = f()</code>" in html
    for way in LATE.ways_out:
        assert f'<code style="white-space:nowrap;user-select:all">{way.command}</code>' in html


def test_a_place_without_code_has_no_mark_of_code() -> None:
    html = as_html(replace(LATE, where="CUDA was initialised between two cells", ways_out=()))
    assert "between two cells." in html
    assert "<code" not in html


def test_the_report_of_a_restart_is_short() -> None:
    """What is more is folded; in a terminal the last line says where it is."""
    gpus = tuple(Device(number, ordinal=number, name="A") for number in range(8))
    notes = ("Ended: thread a.", "Kept: x.", *(f"remark {i}" for i in range(10)))
    one = Selection("on", {}, "restarted", gpus, notes=notes, lost=("x",))
    lines = as_text(one, width=80).splitlines()
    assert len(lines) == 9
    assert lines[1:4] == ["  cuda:0 to cuda:7 are GPU 0–7", "Lost: 1 variable (x).", notes[0]]
    assert lines[-1].startswith("7 more remarks: .notes of the result")
    assert "remark 9" in as_html(one)
