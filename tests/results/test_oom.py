"""The report on an allocation that failed."""

from __future__ import annotations

from dataclasses import replace

from gpumagic.results import OutOfMemory
from tests.results.examples import OOM

GIB = 2**30


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
