"""The times of a cell on the engines of a cluster."""

from __future__ import annotations

from typing import Any

import pytest

from gpumagic.results import ClusterTiming, CudaTiming, EngineTiming, Kernel, KernelReport, Sample
from gpumagic.results.base import as_text
from tests.support.drawing import check_drawing


def timing(seconds: float, **fields: Any) -> CudaTiming:
    sample = Sample((seconds,))
    return CudaTiming(**{"gpu": sample, "wall": sample, "cpu": sample, **fields})


REPORT = KernelReport((Kernel("gemm", 1, 1.0, 1.0, 1.0),), launches=1)
TIMING = ClusterTiming(
    (
        EngineTiming(0, "alpha", rank=1, timing=timing(1.0, bound="gpu", kernels=REPORT)),
        EngineTiming(1, "alpha", rank=0, timing=timing(2.0, gpu_at_most=True, bound="host")),
        EngineTiming(2, "beta", timing=timing(0.5, partial=True), error="KeyboardInterrupt"),
        EngineTiming(3, error="the engine has died"),
    ),
    notes=("a note",),
)
TIMES = """\
Over the engines    Median       Min       Max
──────────────────────────────────────────────
GPU               ≤ 1.50 s  ≤ 1.00 s  ≤ 2.00 s
Wall                1.50 s    1.00 s    2.00 s
CPU                 1.50 s    1.00 s    2.00 s
       Engine  Host   Rank       GPU    Wall     CPU  Limited by
────────────────────────────────────────────────────────────────
            0  alpha     1    1.00 s  1.00 s  1.00 s  the GPU
          ! 1  alpha     0  ≤ 2.00 s  2.00 s  2.00 s  the host
✗ 2 (partial)  beta      –    500 ms  500 ms  500 ms  –
straggler: engine 1 on alpha took 1.3× the median
host-bound, the GPU waits for work to be launched: engine 1
the engines started when the cell reached them; ranks of a process group (%gpu dist init) start together
engine 0
Kernel  Count   Total           Share    Mean
─────────────────────────────────────────────
gemm        1  1.00 s  ████████ 100 %  1.00 s
1 kernel, as many as launched (1 launch)
✗ engine 2: KeyboardInterrupt
✗ engine 3: the engine has died
a note"""  # noqa: E501


def test_drawing_of_times() -> None:
    check_drawing(TIMING, TIMES)
    assert "after a barrier" in str(ClusterTiming(TIMING.engines, barrier=True))


def test_times_as_data() -> None:
    """A partial time is not compared."""
    assert TIMING.gpu == Sample((1.0, 2.0))
    assert TIMING.failed == {2: "KeyboardInterrupt", 3: "the engine has died"}
    assert TIMING.slowest is TIMING.straggler is TIMING.engines[1]
    assert TIMING.host_bound == (1,)
    assert repr(TIMING) == "<ClusterTiming: 4 engines, median 1.5 s>"
    assert repr(ClusterTiming()) == "<ClusterTiming: 0 engines, ->"
    pytest.importorskip("pandas")
    assert TIMING.to_pandas().loc[1, "gpu_time"] == 2.0


def test_of_many_engines_the_slowest_have_a_row() -> None:
    engines = tuple(EngineTiming(i, "alpha", timing=timing(1 + i / 100)) for i in range(17))
    text = as_text(ClusterTiming(engines), 100)
    rows = [line.split() for line in text.splitlines() if " alpha " in line]
    assert [row[0] for row in rows] == [str(i) for i in range(9, 17)]
    assert "the 8 slowest of 17 engines" in text
    assert "slowest: engine 16 on alpha" in text
