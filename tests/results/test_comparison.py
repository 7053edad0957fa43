"""Several timings compared: the table, the picture, the data."""

from __future__ import annotations

import json
import sys

import pytest

from gpumagic.results import Compared, Comparison, CudaTiming, Sample
from gpumagic.results.base import as_text
from tests.support.drawing import check_drawing


def timing(*gpu: float, **fields: object) -> CudaTiming:
    wall = Sample(tuple(1.1 * value for value in gpu))
    common = {"gpu": Sample(gpu), "wall": wall, "cpu": wall, "repeat": len(gpu)}
    return CudaTiming(**{**common, **fields})  # type: ignore[arg-type]


COMPARISON = Comparison(
    (
        Compared("baseline", timing(0.010, 0.010, 0.012, 0.010), 1.0),
        Compared("fused", timing(0.005, 0.005), 0.5, (0.48, 0.52), "faster"),
        Compared("eager", timing(0.020, 0.021, gpu_at_most=True), 2.0, (1.9, 2.1), "slower"),
        Compared("same", timing(0.010, 0.011), 1.01, (0.9, 1.1), "noise"),
        Compared("once", timing(0.010)),
    ),
    "gpu",
    ("a note",),
)
TEXT = """\
Name                     GPU  Compared with baseline           Wall     IQR
───────────────────────────────────────────────────────────────────────────
baseline  ███▉       10.0 ms  baseline                      11.0 ms  500 µs
fused     ██         5.00 ms  2.00× faster (1.92–2.08)      5.50 ms     0 s
eager     ████████ ≤ 20.5 ms  2.00× slower (1.90–2.10)      22.6 ms  500 µs
same      ████▏      10.5 ms  within the noise (0.90–1.10)  11.6 ms  500 µs
once      ███▉       10.0 ms  –                             11.0 ms       –
a note"""


def test_drawing() -> None:
    check_drawing(COMPARISON, TEXT)


def test_data() -> None:
    assert COMPARISON.baseline == "baseline"
    assert COMPARISON["fused"] is COMPARISON[1]
    assert [entry.name for entry in COMPARISON][-1] == "once"
    assert len(COMPARISON) == 5
    with pytest.raises(KeyError):
        _ = COMPARISON["x"]
    assert json.loads(COMPARISON.to_json())["entries"][1]["verdict"] == "faster"
    wall = Comparison(COMPARISON.entries, "wall")
    assert wall.sample(wall[1]) is COMPARISON[1].timing.wall


def test_repr() -> None:
    assert repr(COMPARISON) == "<Comparison: baseline, fused, eager, same, once>"


def test_data_frame() -> None:
    pytest.importorskip("pandas")
    frame = COMPARISON.to_pandas()
    assert list(frame.index) == ["baseline", "fused", "eager", "same", "once"]
    assert frame.loc["fused", "ratio_high"] == 0.52
    assert frame["ratio"].isna().sum() == 1


def test_the_picture(tmp_path: object) -> None:
    pytest.importorskip("matplotlib")
    before = "matplotlib.pyplot" in sys.modules
    names = Comparison(
        (Compared(r"$\frac{$", timing(0.010), 1.0), Compared("\x1b[2J", timing(0.02), 2.0)), "gpu"
    )
    assert names.plot().bundle("")[0]["image/png"].startswith(b"\x89PNG")
    (axes,) = COMPARISON.plot().figure.axes
    assert axes.get_xlabel() == "GPU time per loop (ms)"
    assert [label.get_text() for label in axes.get_yticklabels()] == [
        entry.name for entry in COMPARISON
    ]
    assert axes.patches[0].get_width() == pytest.approx(0.5)
    assert ("matplotlib.pyplot" in sys.modules) == before


def test_outliers_are_counted_beside_the_picture() -> None:
    pytest.importorskip("matplotlib")
    usual = timing(*[0.010] * 20)
    far = timing(*[0.005] * 18, 0.9, 0.8)
    (axes,) = Comparison((Compared("a", usual, 1.0), Compared("b", far)), "gpu").plot().figure.axes
    assert axes.get_xlim() == (0, pytest.approx(10.5))
    assert [label.get_text() for label in axes.get_yticklabels()] == [
        "a",
        "b\n2 repeats beyond,\nup to 900 ms",
    ]
    assert [text.get_text() for text in axes.texts] == ["10.0 ms ", "5.00 ms "]
    (drawn,) = (line for line in axes.lines if len(line.get_xdata()) == 18)
    assert list(drawn.get_xdata()) == pytest.approx([5.0] * 18)


def test_a_ratio_that_rounds_to_one_is_the_same() -> None:
    base = Compared("a", timing(0.010, 0.011))
    near = Compared("b", timing(0.010, 0.011), 1.001, (1.0005, 1.002), "slower")
    wide = Compared("c", timing(0.010, 0.011), 0.999, (0.9, 1.1), "noise")
    lines = as_text(Comparison((base, near, wide), "gpu"), 200).splitlines()
    assert " same  " in lines[3]
    assert "1.00" not in lines[3]
    assert "within the noise (0.90–1.10)" in lines[4]


@pytest.mark.parametrize(
    ("ratio", "colour"), [(1.0149, ""), (1.0151, "warn"), (1 / 1.0151, "good")]
)
def test_a_ratio_is_coloured_by_what_is_shown_of_it(ratio: float, colour: str) -> None:
    verdict = "slower" if ratio > 1 else "faster"
    entry = Compared("b", timing(0.010, 0.011), ratio, (ratio - 0.001, ratio + 0.001), verdict)
    (grid,) = Comparison((Compared("a", timing(0.010, 0.011)), entry), "gpu")._blocks()
    cell = grid.rows[1][2]
    assert (cell.style, cell.text[:5]) == (colour or "dim", "1.02×" if colour else "1.01×")
