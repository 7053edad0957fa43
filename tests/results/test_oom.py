"""The report on an allocation that failed."""

from __future__ import annotations

from dataclasses import replace

from gpumagic.results import Holder, OutOfMemory, Process, Remedy
from gpumagic.results.base import as_text
from tests.support.drawing import check_drawing

GIB = 2**30
OOM = OutOfMemory(
    device=0,
    name="NVIDIA H100",
    requested=20 * GIB,
    where="In[5] line 3 in forward",
    source="h = self.net(x)",
    total=80 * GIB,
    free=2 * GIB,
    reserved=60 * GIB,
    allocated=50 * GIB,
    outside=GIB,
    others=17 * GIB,
    processes=(
        Process(7, 10 * GIB, command="python train.py", mine=True),
        Process(8, 7 * GIB, command="python secret.py", mine=False),
    ),
    largest_free=4 * GIB,
    limit=78 * GIB,
    fragmented=True,
    holders=(
        Holder(
            "model", "module", 40 * GIB, {"parameters": 30 * GIB, "gradients": 10 * GIB}, 9, 0, 0
        ),
        Holder("Out[3]", "tensor", 5 * GIB, {"": 5 * GIB}, 1, 0, 0, also=("x",), pinned=True),
    ),
    unattributed=5 * GIB,
    remedies=(
        Remedy("%gpumem free", "Out holds it", 15 * GIB, False),
        Remedy("a smaller batch", "less at once"),
        Remedy("%gpumem free model", "its parameters are lost", 40 * GIB, True),
    ),
    notes=("a note",),
)
TEXT = """\
✗ Out of memory on cuda:0 (NVIDIA H100): In[5] line 3 in forward tried to allocate 20.0 GiB
    h = self.net(x)
██████████▓▓░░░  2.00 GiB free of 80.0 GiB
█ allocated  ▓ cached  ▒ non-PyTorch  ░ other processes
allocated        50.0 GiB  live tensors
cached           10.0 GiB  largest block 4.00 GiB
non-PyTorch      1.00 GiB  CUDA's context, libraries
other processes  17.0 GiB  python train.py (pid 7) 10.0 GiB, 1 not yours, as far as is known
free             2.00 GiB  this process may use 78.0 GiB
Fragmented: enough memory is reserved and unused, but in blocks that are too small
Held by                                    Memory  Kind    Also held by
───────────────────────────────────────────────────────────────────────
model                           ██████▍  40.0 GiB  module
└ parameters                    ████▊    30.0 GiB
└ gradients                     █▋       10.0 GiB
! Out[3]                        ▊        5.00 GiB  tensor  x
not referenced by any variable  ▊        5.00 GiB
1. %gpumem free gives 15.0 GiB, not enough: Out holds it
2. a smaller batch: less at once
3. %gpumem free model gives 40.0 GiB, ✓ enough: its parameters are lost
a note"""


def test_drawing() -> None:
    """A process of another user is only counted."""
    check_drawing(OOM, TEXT)


def test_a_narrow_terminal_keeps_what_memory_is_used_for() -> None:
    """That part has no headers, by which what is hidden could be named."""
    lines = as_text(OOM, 80).splitlines()
    row = next(i for i, line in enumerate(lines) if line.startswith("other processes"))
    said = " ".join(line[27:].strip() for line in lines[row : row + 2])
    assert said == "python train.py (pid 7) 10.0 GiB, 1 not yours, as far as is known"
    assert "hidden (too narrow)" not in "".join(lines)
    assert max(map(len, lines[2:-4])) <= 84


def test_drawing_of_what_little_is_known() -> None:
    check_drawing(OutOfMemory(), "✗ Out of memory on the GPU")
    check_drawing(
        OutOfMemory(device=1, requested=GIB),
        "✗ Out of memory on cuda:1: the failed call tried to allocate 1.00 GiB",
    )


def test_fragmentation_and_an_incomplete_search() -> None:
    shown = str(replace(OOM, fragmented=False, fragmentation="expandable", complete=False))
    assert "Fragmentation is not the cause; expandable segments are on" in shown
    assert "not known: the search was incomplete" in shown
    assert "Fragment" not in str(replace(OOM, fragmented=None))


def test_what_is_missing_is_stated() -> None:
    short = replace(OOM, fragmented=None, limit=None)
    assert short.missing == 18 * GIB
    assert str(short).splitlines()[0].endswith("tried to allocate 20.0 GiB, 18.0 GiB short")
    assert replace(short, limit=61 * GIB).missing == 19 * GIB
    assert OOM.missing is None  # enough is reserved, in pieces
    assert replace(short, requested=GIB).missing is None
    assert OutOfMemory(requested=1).missing is None


def test_for_what_is_larger_than_the_device_that_alone_is_the_advice() -> None:
    notes = ("there was no time to visit all objects",)
    large = replace(OOM, requested=100 * GIB, fragmented=None, notes=notes)
    lines = str(large).splitlines()
    assert lines[-1] == "No memory that is freed helps: 80.0 GiB is all there is. Ask for less."
    assert not any("gpumem free" in line or "Held by" in line for line in lines)


def test_the_holders_add_up() -> None:
    more = replace(OOM, allocated=53 * GIB, more_holders=12, more_bytes=3 * GIB)
    rows = [line for line in str(more).splitlines() if line.startswith("12 more")]
    assert len(rows) == 1
    assert "3.00 GiB" in rows[0]


def test_unused() -> None:
    assert OOM.unused == 10 * GIB
    assert OutOfMemory(reserved=1).unused is None


def test_repr() -> None:
    assert repr(OOM) == f"<OutOfMemory: {20 * GIB} B on cuda:0>"
