"""The times of a cell."""

from __future__ import annotations

import json
import statistics
from dataclasses import replace
from typing import Any

import pytest

from gpumagic.results import CudaTiming, Sample
from gpumagic.results.base import as_html, as_text
from gpumagic.results.quality import Quality
from gpumagic.results.timing import time_unit
from tests.support.drawing import check_drawing


def timing(*gpu: float, **fields: Any) -> CudaTiming:
    sample = Sample(gpu)
    return CudaTiming(**{"gpu": sample, "wall": sample, "cpu": sample, **fields})


SINGLE = timing(
    0.010,
    wall=Sample((0.012,)),
    cpu=Sample((0.0,)),
    cpu_user=Sample((0.0,)),
    cpu_system=Sample((0.0,)),
    per_device={1: Sample((0.010,))},
    host=Sample((0.001,)),
    compile_time=0.5,
    notes=("a note",),
)
SINGLE_TEXT = """\
GPU   10.0 ms  cuda:1
Wall  12.0 ms
CPU    < 1 µs  user < 1 µs, sys < 1 µs
Host  1.00 ms  until the code returned
compiled in 500 ms, which is not counted
a note"""
REPEATED = timing(
    0.010,
    0.011,
    0.030,
    per_device={0: Sample((0.010, 0.011, 0.030)), 1: Sample((0.001, 0.001, 0.001))},
    loops=10,
    repeat=3,
    queued=Sample((0.009,)),
    host=Sample((0.002, 0.002, 0.002)),
    bound="gpu",
    bound_evidence="the queue was never empty",
    compilations=(1.5,),
    gpu_at_most=True,
    quality=Quality(
        0.012,
        "precision",
        drift=0.25,
        outliers=(0.030,),
        throttled={0: ("too hot",)},
        flushed={0: 2**20},
    ),
)
REPEATED_TEXT = """\
Per loop     Median      IQR      Min      Max         Mean ± std
─────────────────────────────────────────────────────────────────
GPU       ≤ 11.0 ms  10.0 ms  10.0 ms  30.0 ms  17.0 ms ± 9.20 ms
  cuda:0  ≤ 11.0 ms  10.0 ms  10.0 ms  30.0 ms  17.0 ms ± 9.20 ms
  cuda:1  ≤ 1.00 ms      0 s  1.00 ms  1.00 ms      1.00 ms ± 0 s
  queued    9.00 ms      0 s  9.00 ms  9.00 ms      9.00 ms ± 0 s
Wall        11.0 ms  10.0 ms  10.0 ms  30.0 ms  17.0 ms ± 9.20 ms
CPU         11.0 ms  10.0 ms  10.0 ms  30.0 ms  17.0 ms ± 9.20 ms
Host        2.00 ms      0 s  2.00 ms  2.00 ms      2.00 ms ± 0 s
3 repeats, 10 loops each; the median is known to ±1.2 %: as precise as requested
GPU-bound (the queue was never empty)
torch.compile compiled in the first run, not counted: 1.50 s
L2 cache flushed before each loop: cuda:0 1.00 MiB
drift: the second half of the repeats took 25.0 % more time
outliers: 1 of 3 repeats, up to 30.0 ms; all are counted
cuda:0's clock was throttled: too hot"""


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


def test_drawing_of_repeats() -> None:
    check_drawing(REPEATED, REPEATED_TEXT)


def test_drawing_without_gpu_time() -> None:
    result = CudaTiming(None, Sample((1.0,)), Sample((0.5,)), gpu_note="no GPU time: no torch")
    check_drawing(result, "wall 1.00 s · CPU 500 ms\nno GPU time: no torch")
    rows = "GPU        –\nWall  1.00 s\nCPU   500 ms\nno GPU time: no torch"
    check_drawing(replace(result, show_rows=True), rows)


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


def test_statistics() -> None:
    sample = Sample((1.0, 4.0, 2.0, 3.0))
    assert (sample.median, sample.mean, sample.best, sample.worst) == (2.5, 2.5, 1.0, 4.0)
    assert sample.stdev == pytest.approx(statistics.pstdev(sample.all))
    assert sample.quartiles == (1.75, 3.25)
    assert sample.iqr == 1.5
    single = Sample((0.1,))
    assert (single.quartiles, single.iqr, single.stdev) == ((0.1, 0.1), 0.0, 0.0)
    with pytest.raises(ValueError, match="at least one value"):
        Sample(())
    assert repr(sample) == "<Sample: median 2.5 s of 4>"


def test_the_attributes_of_timeit_result() -> None:
    """Of the GPU times; of the wall times where there are none."""
    assert REPEATED.timings == [0.010, 0.011, 0.030]
    assert REPEATED.all_runs == pytest.approx([0.1, 0.11, 0.3])
    assert (REPEATED.best, REPEATED.worst) == (0.010, 0.030)
    assert REPEATED.average == pytest.approx(0.017)
    assert REPEATED.stdev == REPEATED.gpu.stdev  # type: ignore[union-attr]
    assert CudaTiming(None, Sample((2.0,)), Sample((1.0,))).best == 2.0


def test_repr() -> None:
    assert repr(SINGLE) == "<CudaTiming: gpu 0.01 s, wall 0.012 s>"
    assert repr(replace(SINGLE, gpu=None)) == "<CudaTiming: gpu -, wall 0.012 s>"


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


def test_the_unit_of_a_picture() -> None:
    assert time_unit([Sample((0.5, 0.002))]) == (1e-3, "ms")
    assert time_unit([Sample((0.1,)), Sample((3.0,))]) == (1.0, "s")
    assert time_unit([Sample((0.0,))]) == (1e-9, "ns")


def test_outliers_are_counted_in_the_title_of_a_picture() -> None:
    pytest.importorskip("matplotlib")
    far = replace(REPEATED, gpu=Sample((*[0.005] * 18, 0.9, 0.8)))
    timeline, _ = far.plot().figure.axes
    assert timeline.get_title() == "runs; 2 repeats above, up to 900 ms"
    assert not timeline.texts


def test_the_picture() -> None:
    pytest.importorskip("matplotlib")
    timeline, spread = REPEATED.plot().figure.axes
    assert list(timeline.lines[0].get_ydata()) == pytest.approx([10, 11, 30])
    assert len(timeline.lines) == 3  # both devices, too
    assert timeline.get_ylabel() == "GPU time per loop, at most (ms)"
    assert sum(patch.get_width() for patch in spread.patches) == 9
    single = replace(SINGLE, gpu=None).plot().figure.axes[0]
    assert single.get_ylabel() == "wall time per loop (ms)"


def test_without_a_gpu_time_the_wall_time_leads() -> None:
    one = Sample((0.012,))
    result = CudaTiming(gpu=None, wall=one, cpu=one)
    assert as_text(result).startswith("wall 12.0 ms · CPU")
    assert 'font-weight:600">12.0 ms<' in as_html(result)


def test_the_precision_of_a_median_is_never_zero() -> None:
    one = Sample((0.012, 0.012))
    quality = Quality(stopped_by="precision", precision=1e-5, drift=-0.022)
    shown = as_text(CudaTiming(gpu=one, wall=one, cpu=one, repeat=2, quality=quality))
    assert "the median is known to less than ±0.1 %" in shown
    assert "the second half of the repeats took 2.2 % less time" in shown
