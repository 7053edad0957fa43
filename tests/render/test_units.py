"""Numbers with units as text."""

from __future__ import annotations

import pytest

from gpumagic.render import units
from gpumagic.render.units import bytes_, cpu_seconds, percent, seconds, share, spans

KIB, MIB, GIB, TIB = 2**10, 2**20, 2**30, 2**40


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        (0, "0 B"),
        (1023, "1023 B"),
        (KIB, "1.00 KiB"),
        (9.994 * KIB, "9.99 KiB"),
        (9.996 * KIB, "10.0 KiB"),
        (99.96 * KIB, "100 KiB"),
        (1023 * KIB, "1023 KiB"),
        (1023.6 * KIB, "1.00 MiB"),  # not 1024 KiB
        (MIB, "1.00 MiB"),
        (GIB - 64, "1.00 GiB"),
        (1.5 * GIB, "1.50 GiB"),
        (TIB, "1.00 TiB"),
        (5000 * TIB, "5000 TiB"),
        (-512, "−512 B"),
    ],
)
def test_bytes(value: float | None, text: str) -> None:
    assert bytes_(value if value is None else int(value)) == text


def test_a_change_has_a_sign() -> None:
    assert [bytes_(value, sign=True) for value in (GIB, -512, 0, None)] == [
        *("+1.00 GiB", "−512 B", "0 B", "–")
    ]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        (0, "0 s"),
        (50.1e-3, "50.1 ms"),
        (3.02e-6, "3.02 µs"),
        (1e-9, "1.00 ns"),
        (1e-12, "0 s"),
        (0.9996e-3, "1.00 ms"),  # not 1000 µs
        (59.96, "60.0 s"),
        (125, "2 min 5 s"),
        (7325, "2 h 2 min 5 s"),
        (-0.5, "−500 ms"),
        (900.0, "15 min"),
    ],
)
def test_seconds(value: float | None, text: str) -> None:
    assert seconds(value) == text


def test_cpu_time_below_the_clocks_resolution(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(units, "_CPU_RESOLUTION", 1e-6)
    assert [cpu_seconds(value) for value in (None, 0.0, 0.5e-6, 1e-6, 2e-3)] == [
        *("–", "< 1 µs", "< 1 µs", "1.00 µs", "2.00 ms")
    ]
    assert cpu_seconds(0.0, loops=100) == "< 10 ns"
    assert cpu_seconds(1e-8, loops=100) == "10.0 ns"
    assert cpu_seconds(0.0, loops=10**9) == "< 1 ns"


def test_percent() -> None:
    assert (percent(None), percent(96.7)) == ("–", "97 %")
    assert (share(0.967), share(-0.967), share(0.5, sign=True)) == ("97 %", "−97 %", "+50 %")
    # What is rounded to nothing has no sign.
    assert {share(x, 1, sign=True) for x in (0.0, 0.0004, -0.0004)} == {"0.0 %"}


@pytest.mark.parametrize(
    ("numbers", "text"),
    [([], ""), ([7], "7"), ([3, 0, 1, 2, 7], "0–3, 7"), ([1, 3, 5], "1, 3, 5"), ([4, 5], "4–5")],
)
def test_spans(numbers: list[int], text: str) -> None:
    assert spans(numbers) == text
