"""The times of a cell."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from gpumagic.results import CudaTiming, Sample
from gpumagic.results.base import as_text
from gpumagic.results.quality import Quality
from tests.results.examples import REPEATED, SINGLE, timing
from tests.support.drawing import check_drawing

SINGLE_TEXT = """\
GPU   10.0 ms  cuda:1
Wall  12.0 ms
CPU    < 1 µs  user < 1 µs, sys < 1 µs
Host  1.00 ms  until the code returned
compiled in 500 ms, which is not counted
a note"""


ONE_LINE = """\
10.0 ms on cuda:1 · wall 12.0 ms · CPU < 1 µs · Python returned after 1.00 ms
compiled in 500 ms, which is not counted
a note"""


def test_drawing_of_a_single_run() -> None:
    check_drawing(SINGLE, ONE_LINE)
    check_drawing(replace(SINGLE, show_rows=True), SINGLE_TEXT)
    two = replace(SINGLE, per_device={0: Sample((0.010,)), 1: Sample((0.002,))}, gpu_at_most=True)
    assert str(two).splitlines()[0] == (
        "≤ 10.0 ms on 2 devices · cuda:0 ≤ 10.0 ms, cuda:1 ≤ 2.00 ms · wall 12.0 ms · "
        "CPU < 1 µs · Python returned after 1.00 ms"
    )


@pytest.mark.parametrize(
    ("fields", "count"),
    [
        ({"repeat": 2}, "2 repeats, 1 loop each"),
        ({"repeat": 1, "loops": 1000}, "1 repeat, 1,000 loops each"),
        (
            {"partial": True, "quality": Quality(None, asked=7)},
            "1 of 7 repeats, 1 loop each, stopped early",
        ),
        (
            {"quality": Quality(None, "max-time")},
            "1 repeat, 1 loop each; too few for the precision of the median: "
            "the time limit was reached",
        ),
        (
            {"repeat": 9, "quality": Quality(0.1, "precision")},
            "9 repeats, 1 loop each; the median is known to ±10.0 %: as precise as requested",
        ),
    ],
)
def test_the_number_of_repeats(fields: dict[str, Any], count: str) -> None:
    assert as_text(timing(1.0, **fields), 100).splitlines()[-1] == count


def test_what_limits_the_code() -> None:
    limited = replace(REPEATED, bound="host", queued_note="it synchronises")
    assert "host-bound: the GPU waits for work to be launched (the queue" in str(limited)
    assert "no queued GPU time: it synchronises" in str(limited)
    assert "neither the GPU nor the host clearly" in str(replace(REPEATED, bound=None))


def test_the_attributes_of_timeit_result() -> None:
    """Of the GPU times; of the wall times where there are none."""
    assert REPEATED.timings == [0.010, 0.011, 0.030]
    assert REPEATED.all_runs == pytest.approx([0.1, 0.11, 0.3])
    assert (REPEATED.best, REPEATED.worst) == (0.010, 0.030)
    assert REPEATED.average == pytest.approx(0.017)
    assert REPEATED.stdev == REPEATED.gpu.stdev  # type: ignore[union-attr]
    assert CudaTiming(None, Sample((2.0,)), Sample((1.0,))).best == 2.0


def test_data_frame() -> None:
    pandas = pytest.importorskip("pandas")
    result = timing(0.1, 0.2, 0.3, per_device={1: Sample((0.1, 0.2, 0.3))})
    frame = result.to_pandas()
    assert list(frame.columns) == ["gpu", "wall", "cpu", "host", "cuda:1"]
    assert list(frame.index) == [1, 2, 3]
    assert frame.index.name == "repeat"
    assert list(frame["gpu"]) == [0.1, 0.2, 0.3]
    assert frame["host"].isna().all()
    # The first repeat initialised CUDA.
    late = replace(result, gpu=Sample((0.2, 0.3))).to_pandas()
    assert pandas.isna(late.loc[1, "gpu"])
    assert list(late["gpu"])[1:] == [0.2, 0.3]
    assert json.loads(result.to_json())["gpu"]["all"] == [0.1, 0.2, 0.3]


def test_the_precision_of_a_median_is_never_zero() -> None:
    one = Sample((0.012, 0.012))
    quality = Quality(stopped_by="precision", precision=1e-5, drift=-0.022)
    shown = as_text(CudaTiming(gpu=one, wall=one, cpu=one, repeat=2, quality=quality))
    assert "the median is known to less than ±0.1 %" in shown
    assert "the second half of the repeats took 2.2 % less time" in shown
