"""The outcome of selecting devices."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpumagic.render.colors import STATES
from gpumagic.results import Device, DeviceHolders, Holder, Holders, Selection
from gpumagic.results.base import as_html, as_text
from tests.results.examples import LATE
from tests.support.drawing import check_drawing

GIB = 2**30


@pytest.mark.parametrize(
    ("selection", "text"),
    [
        (
            Selection("0", {"CUDA_VISIBLE_DEVICES": None}, "too-late"),
            "too-late: this kernel still sees no GPU  (CUDA_VISIBLE_DEVICES is not set)",
        ),
        (
            Selection(
                "0", {"CUDA_VISIBLE_DEVICES": "0"}, "gated", (Device(0, ordinal=0, name="A"),)
            ),
            "gated: this kernel sees 1 GPU\n  cuda:0 is GPU 0, A",
        ),
        (
            Selection("0", {"CUDA_VISIBLE_DEVICES": "0"}, "unchanged", devices_known=False),
            "unchanged: what this kernel sees is not known before CUDA starts  "
            "(CUDA_VISIBLE_DEVICES=0)",
        ),
        (
            Selection("off", {"CUDA_VISIBLE_DEVICES": "-1"}, "restarted", lost=("x", "model")),
            "restarted: this kernel sees no GPU  (CUDA_VISIBLE_DEVICES=-1)\n"
            "Lost: 2 variables (x, model).",
        ),
    ],
)
def test_drawing_of_a_status(selection: Selection, text: str) -> None:
    check_drawing(selection, text)


def test_the_colour_of_the_status() -> None:
    for status, color in (("applied", "good"), ("gated", "warn"), ("too-late", "bad")):
        assert STATES[color] in as_html(Selection("0", {}, status))  # type: ignore[arg-type, index]


def test_what_a_gate_leaves_is_listed_by_size() -> None:
    """In a container or not; what is small beside it has no row."""

    def device(unattributed: int = 0, **sizes: int) -> DeviceHolders:
        named = tuple(Holder(name, "dict", size, {}, 1, size, 0) for name, size in sizes.items())
        total = sum(sizes.values())
        return DeviceHolders(total + unattributed, total, 0, unattributed, 0, named)

    existing = Holders({0: device(GIB, loss=4, model=2 * GIB), 1: device(cache=40 * GIB)})
    gated = Selection("off", {}, "gated", existing=existing, notes=("lift it with: %gpu on",))
    check_drawing(
        gated,
        "gated: this kernel sees no GPU\n"
        "Still on the GPU:\n"
        "cache                           40.0 GiB  cuda:1\n"
        "model                           2.00 GiB  cuda:0\n"
        "not referenced by any variable  1.00 GiB  cuda:0\n"
        "1 more                               4 B\n"
        "lift it with: %gpu on",
    )
    assert "<code" in as_html(gated).partition("lift it with: ")[2]
    assert "Still" not in as_text(replace(gated, existing=Holders(error="CUDA is not started")))


TOO_LATE = """\
┃ ✗ Too late for 'off': torch has initialised CUDA
┃ CUDA was initialised while cell [2] ran x = f() (line 3).
┃ To change that:
┃ %gpu off --restart  a fresh kernel
┃ %gpu off --soft     nothing is lost
This kernel still sees 1 GPU"""


def test_too_late_is_a_callout_with_commands_to_copy() -> None:
    """It is said once, and nowhere else."""
    late = replace(LATE, notes=("processes started from here see the choice: the variable",))
    for shown in (as_text(late), as_html(late)):
        assert shown.lower().replace("-", " ").count("too late") == 1
        assert "CUDA_VISIBLE_DEVICES" not in shown
    check_drawing(LATE, TOO_LATE)
    html = as_html(LATE)
    assert ">x = f()</code>" in html
    for way in LATE.ways_out:
        assert f'<code style="white-space:nowrap;user-select:all">{way.command}</code>' in html
