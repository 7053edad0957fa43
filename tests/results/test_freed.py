"""The memory that `%gpumem free` has freed."""

from __future__ import annotations

from dataclasses import replace

from gpumagic.results import Freed, FreeStep
from tests.support.drawing import check_drawing

GIB = 2**30
FREED = Freed(
    (
        FreeStep("drop Out", {0: 3 * GIB}),
        FreeStep("collect garbage", {0: GIB}),
        FreeStep("empty the cache", {}, {0: 6 * GIB}),
    ),
    {0: 8 * GIB, 1: GIB},
    {0: 4 * GIB, 1: GIB},
    {0: 10 * GIB, 1: GIB},
    {0: 4 * GIB, 1: GIB},
    notes=("a note",),
)
TEXT = """\
cuda:0 freed     Allocated  Reserved
────────────────────────────────────
drop Out          3.00 GiB       0 B
collect garbage   1.00 GiB       0 B
empty the cache        0 B  6.00 GiB
allocated 8.00 GiB → 4.00 GiB, reserved 10.0 GiB → 4.00 GiB
a note"""


def test_drawing() -> None:
    """A device on which nothing changed is not listed."""
    check_drawing(FREED, TEXT)
    nothing = replace(
        FREED, allocated_after={0: 8 * GIB, 1: GIB}, reserved_after={0: 10 * GIB, 1: GIB}
    )
    check_drawing(nothing, "There was nothing to free.\na note")
    check_drawing(Freed(dry_run=True), "There is nothing to free.")
    check_drawing(Freed(error="no allocator"), "Nothing to free: no allocator")


def test_a_dry_run_does_not_know_how_much_is_garbage() -> None:
    lines = str(replace(FREED, dry_run=True)).splitlines()
    assert lines[0].startswith("cuda:0 would free")
    assert lines[3].split() == ["collect", "garbage", "–", "–"]


def test_repr() -> None:
    assert repr(FREED) == f"<Freed: {4 * GIB} B>"
    assert repr(replace(FREED, dry_run=True)) == f"<Freed: {4 * GIB} B, not yet>"
