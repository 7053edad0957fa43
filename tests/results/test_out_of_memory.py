"""The report on an allocation that failed."""

from __future__ import annotations

from dataclasses import replace

from gpumagic.results.base import as_text
from gpumagic.results.memory.holders import NO_VARIABLE
from gpumagic.results.memory.out_of_memory import OutOfMemory
from tests.results.examples import OOM

GIB = 2**30


def test_what_is_missing_is_stated() -> None:
    short = replace(OOM, fragmented=None, limit=None)
    assert short.missing == 18 * GIB
    assert str(short).splitlines()[0].endswith("tried to allocate 20.0 GiB, 18.0 GiB short")
    assert replace(short, limit=61 * GIB).missing == 19 * GIB
    assert OOM.missing is None  # enough is reserved, in pieces
    assert replace(short, requested=GIB).missing is None
    assert OutOfMemory(requested=1).missing is None


def test_what_helps() -> None:
    lines = str(OOM).splitlines()
    assert lines[-3].startswith("%gpumem free gives at least 15.0 GiB: what the failed functions")
    assert lines[-2].endswith("too small: restart with PYTORCH_ALLOC_CONF=expandable_segments:True")
    for unattributed, least in ((None, "at least "), (0, "")):
        known = str(replace(OOM, unattributed=unattributed)).splitlines()
        assert f"%gpumem free gives {least}15.0 GiB" in "\n".join(known)
    large = str(replace(OOM, requested=100 * GIB, fragmented=None)).splitlines()
    assert large[-2] == "The request is larger than the device: ask for less."


def test_the_holders_add_up() -> None:
    more = replace(OOM, holders=OOM.holders * 4)
    rows = [line for line in str(more).splitlines() if line.startswith("2 more")]
    assert len(rows) == 1
    assert "45.0 GiB" in rows[0]


def test_where_others_hold_the_gpu_another_one_is_named() -> None:
    found = OutOfMemory(0, "H100", 4 * GIB, total=80 * GIB, free=GIB, others=60 * GIB)
    assert "%gpu auto --restart takes another GPU: other processes hold 60.0 GiB" in str(found)
    assert "another GPU" not in str(replace(found, others=GIB))


def test_unknown_bytes_have_no_row() -> None:
    """Garbage is known where the rest without a variable is not: that is no negative size."""
    shown = as_text(replace(OOM, unattributed=None, garbage=GIB // 2), 100)
    assert "512 MiB" in shown
    assert NO_VARIABLE not in shown
    known = as_text(replace(OOM, unattributed=2 * GIB, garbage=GIB // 2), 100)
    row = next(line for line in known.splitlines() if NO_VARIABLE in line)
    assert "1.50 GiB" in row
