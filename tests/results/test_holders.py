"""The variables that hold GPU memory."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpumagic.results import DeviceHolders, Holder, Holders, Site
from tests.support.drawing import check_drawing

GIB = 2**30


def holder(name: str, size: int, **fields: object) -> Holder:
    common = {"kind": "tensor", "parts": {"": size}, "blocks": 1, "alone": size, "shared": 0}
    return Holder(name, bytes=size, **{**common, **fields})  # type: ignore[arg-type]


MODEL = holder(
    "model",
    4 * GIB,
    kind="module",
    parts={"parameters": 3 * GIB, "buffers": GIB},
    blocks=12,
    alone=GIB,
    shared=3 * GIB,
    also=("optimizer", "trainer", "ema", "best"),
)
DEVICE = DeviceHolders(
    8 * GIB,
    named=5 * GIB,
    pinned=GIB,
    unattributed=2 * GIB - 64,
    rounding=64,
    holders=(
        MODEL,
        holder("state", GIB, kind="optimizer", parts={"optimizer state": GIB}),
        holder("Out[3]", GIB, pinned=True, alone=0),
        holder("view", 0, blocks=0),
    ),
    sites=(Site("In[5] line 3 in step", GIB, 2),),
)
HOLDERS = Holders({0: DEVICE, 1: DeviceHolders(0, 0, 0, 0, 0)}, notes=("a note",))
TEXT = """\
cuda:0                                        Memory  Kind             Blocks     Frees  Also held by
───────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────
model                              ████     4.00 GiB  module               12  1.00 GiB  optimizer, trainer, ema and 1 more
└ parameters                       ███      3.00 GiB
└ buffers                          █        1.00 GiB
state                              █        1.00 GiB  optimizer state       1       all
! Out[3]                           █        1.00 GiB  tensor                1       0 B
no variable: In[5] line 3 in step  █        1.00 GiB                        2
not referenced by any variable     █        1.00 GiB
8.00 GiB allocated (8,589,934,592 B) = variables 5.00 GiB + notebook 1.00 GiB + unreferenced 2.00 GiB + rounding 64 B
Hold only memory that is counted at others: view
a note"""  # noqa: E501


def test_drawing() -> None:
    """A device on which nothing is allocated is not listed."""
    check_drawing(HOLDERS, TEXT)
    check_drawing(Holders(notes=("a note",)), "No GPU memory is allocated\na note")
    check_drawing(Holders(error="no torch"), "No GPU memory to show: no torch")


def test_the_smallest_holders_are_summed_up() -> None:
    many = tuple(holder(f"x{i}", GIB) for i in range(20))
    shown = str(Holders({0: replace(DEVICE, allocated=20 * GIB, holders=many, unattributed=0)}))
    assert "x14" in shown
    assert "x15" not in shown
    assert "5 more" in shown


def test_a_holder_by_its_name() -> None:
    assert DEVICE["model"] is MODEL
    with pytest.raises(KeyError):
        _ = DEVICE["x"]


def test_repr() -> None:
    assert repr(HOLDERS) == "<Holders: 4 on 2 devices>"


def test_data_frame() -> None:
    pytest.importorskip("pandas")
    frame = HOLDERS.to_pandas()
    assert frame.loc[(0, "model"), "alone"] == GIB
    assert list(frame["pinned"]) == [False, False, True, False]
