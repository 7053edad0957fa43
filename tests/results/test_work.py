"""The lines about operations, energy and compilations."""

from __future__ import annotations

import pytest

from gpumagic.results.compilation import Compilation, GraphBreak
from gpumagic.results.work import compilation_lines, work_lines


@pytest.mark.parametrize(
    ("given", "lines"),
    [
        ((None, 1.0, None, None, None), []),
        ((524_288, None, None, None, None), ["524 kFLOP per loop"]),
        (
            (2 * 10**12, 0.004, 0.505, None, None),
            ["2 TFLOP per loop · 500 TFLOP/s · 50.5 % of the card's dense peak"],
        ),
        (
            (0, 0.5, None, None, None),
            [
                "0 FLOP by torch's counter, which does not count element-wise operations, and sees "
                "only what torch launches"
            ],
        ),
        ((None, None, None, 0.0321, 310.5), ["32.1 mJ per loop · 310.5 W"]),
        ((None, None, None, None, 310.5), ["310.5 W"]),
    ],
)
def test_what_is_known_is_written(given: tuple[float | None, ...], lines: list[str]) -> None:
    assert work_lines(*given) == lines  # type: ignore[arg-type]


def test_an_upper_bound_of_the_time_is_a_lower_one_of_the_rate() -> None:
    (line,) = work_lines(10**9, 0.001, 0.001, None, None, at_most=True)
    assert line == "1 GFLOP per loop · ≥ 1 TFLOP/s · ≥ 0.1 % of the card's dense peak"


def test_compilations() -> None:
    assert compilation_lines([]) == []
    once = Compilation("step", "a.py", 3, 0.5, "size mismatch")
    backward = Compilation(seconds=0.25, backward=True)
    (both,) = compilation_lines([Compilation("step", "a.py", 3, 0.5), backward])
    assert both.parts[0].text == "torch.compile compiled 1 time and 1 backward pass in 0.75 s"
    away = Compilation("f", "a.py", 1, failure="no", failed_file="b.py", failed_line=9)
    lines = compilation_lines(
        [once, Compilation(failure="no"), away], [GraphBreak("print", 2, "f", "a.py", 4)]
    )
    assert [line.parts[0].text for line in lines] == [
        "torch.compile compiled 1 time in 0.5 s, with 2 graph breaks",
        "recompiled step (a.py:3): size mismatch",
        "not compiled: no",
        "not compiled: f (a.py:1), at b.py:9: no",
        "2 graph breaks in f (a.py:4): print",
    ]
    many = compilation_lines([], [GraphBreak("print", 1, "f", "a.py", i) for i in range(12)])
    assert len(many) == 12
    assert many[-1].parts[0].text == "graph breaks at 2 more lines"
    (_, long) = compilation_lines([Compilation("f", "a.py", 1, None, "guards " * 100)])
    assert long.parts[0].text.endswith("…")
    assert long.parts[0].whole == "recompiled f (a.py:1): " + "guards " * 100
