"""Numbers with units as text."""

from __future__ import annotations

import pytest

from gpumagic.render import units
from gpumagic.render.units import (
    at_most,
    bytes_,
    cpu_seconds,
    rounded,
    scaled,
    seconds,
    share,
    spans,
)

KIB, MIB, GIB, TIB = 2**10, 2**20, 2**30, 2**40


def test_bytes() -> None:
    """With three or four significant digits; what rounds to 1024 KiB is 1.00 MiB."""
    few = [bytes_(value) for value in (None, 0, 1023, KIB, -512)]
    assert few == ["–", "0 B", "1023 B", "1.00 KiB", "−512 B"]
    kib = [bytes_(int(value * KIB)) for value in (9.994, 9.996, 99.96, 1023, 1023.6)]
    assert kib == ["9.99 KiB", "10.0 KiB", "100 KiB", "1023 KiB", "1.00 MiB"]
    more = [bytes_(int(value)) for value in (MIB, GIB - 64, 1.5 * GIB, TIB, 5000 * TIB)]
    assert more == ["1.00 MiB", "1.00 GiB", "1.50 GiB", "1.00 TiB", "5000 TiB"]
    changes = [bytes_(value, sign=True) for value in (GIB, -512, 0, None)]
    assert changes == ["+1.00 GiB", "−512 B", "0 B", "–"]


def test_seconds() -> None:
    """What rounds to 1000 µs is 1.00 ms."""
    short = [seconds(value) for value in (None, 0, 1e-12, 1e-9, 3.02e-6, 0.9996e-3, 50.1e-3)]
    assert short == ["–", "0 s", "0 s", "1.00 ns", "3.02 µs", "1.00 ms", "50.1 ms"]
    long = [seconds(value) for value in (-0.5, 59.96, 125, 900.0, 7325)]
    assert long == ["−500 ms", "60.0 s", "2 min 5 s", "15 min", "2 h 2 min 5 s"]
    assert (at_most(1.0, True), at_most(1.0, False), at_most(None, True)) == (
        "≤ 1.00 s",
        "1.00 s",
        "–",
    )


def test_a_value_with_a_prefix() -> None:
    shown = [scaled(value, "J") for value in (0.5, 7, 20e6, 2.5e18)]
    assert shown == ["500 mJ", "7.00 J", "20.0 MJ", "2500 PJ"]


def test_cpu_time_below_the_clocks_resolution(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(units, "_CPU_RESOLUTION", 1e-6)
    assert [cpu_seconds(value) for value in (None, 0.0, 0.5e-6, 1e-6, 2e-3)] == [
        *("–", "< 1 µs", "< 1 µs", "1.00 µs", "2.00 ms")
    ]
    assert cpu_seconds(0.0, loops=100) == "< 10 ns"
    assert cpu_seconds(1e-8, loops=100) == "10.0 ns"
    assert cpu_seconds(0.0, loops=10**9) == "< 1 ns"


def test_percent() -> None:
    assert (rounded(None, "%"), rounded(96.7, "%")) == ("–", "97 %")
    assert (share(0.967), share(-0.967), share(0.5, sign=True)) == ("97 %", "−97 %", "+50 %")
    # What is rounded to nothing has no sign.
    assert {share(x, 1, sign=True) for x in (0.0, 0.0004, -0.0004)} == {"0.0 %"}


def test_spans() -> None:
    shown = [spans(numbers) for numbers in ([], [7], [3, 0, 1, 2, 7], [1, 3, 5], [4, 5])]
    assert shown == ["", "7", "0–3, 7", "1, 3, 5", "4–5"]
