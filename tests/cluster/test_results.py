"""What the engines of a cluster report, as it is shown and as data."""

from __future__ import annotations

import pytest

from gpumagic.cluster.cell_results import ClusterTiming
from gpumagic.cluster.results import ClusterTable, EngineResult
from gpumagic.results.timing.sample import Sample
from tests.results.examples import CLUSTER_MEMORY as MEMORY
from tests.results.examples import CLUSTER_SELECTION as SELECTION
from tests.results.examples import CLUSTER_TABLE as TABLE
from tests.results.examples import CLUSTER_TIMING as TIMING
from tests.results.examples import DEAD, MIB, timing
from tests.support.drawing import check_drawing

DEVICES = """\
Host   GPU  Engines        Name           Memory used / total  Util  Processes
──────────────────────────────────────────────────────────────────────────────
alpha    0  0–1 as cuda:0  H100  ██       1.00 GiB / 4.00 GiB   5 %          1
alpha    1  1 as cuda:1    H100  ██       1.00 GiB / 4.00 GiB     –          –
gamma    0  3 as cuda:0    H100                    ✗ not read     –          –
✗ gamma, GPU 0: the GPU is lost
engine 2: no NVML
✗ engines 4–5: no answer in 10 s
4 of 6 engines on 3 hosts (profile default)"""


def test_devices() -> None:
    check_drawing(TABLE, DEVICES)
    check_drawing(ClusterTable(source="a client"), "0 engines on 0 hosts (a client)")
    assert list(TABLE.hosts) == ["alpha", "beta", "gamma"]
    assert {*TABLE.failed} == {4, 5}
    pytest.importorskip("pandas")
    assert TABLE.to_pandas().loc[(1, 1), "ordinal"] == 1


SELECTIONS = """\
Engine  Host   Status     Sees
───────────────────────────────────────────────────────────────────────────────────────────────────
     0  alpha  applied    cuda:0 = GPU 0
     1  alpha  applied    cuda:0 = GPU 0
     2  alpha  too-late   cuda:0 = GPU 0, cuda:1 = GPU 1, cuda:2 = GPU 2, cuda:3 = GPU 3 and 1 more
     3  alpha  unchanged  no GPU
✗ engine 7: the engine died
engine 1: a note"""


def test_selections() -> None:
    check_drawing(SELECTION, SELECTIONS)
    assert SELECTION.too_late == (2,)


TIMES = """\
Over the engines    Median       Min       Max
──────────────────────────────────────────────
GPU               ≤ 1.50 s  ≤ 1.00 s  ≤ 2.00 s
Wall                1.50 s    1.00 s    2.00 s
CPU                 1.50 s    1.00 s    2.00 s
Engine  Host        GPU    Wall     CPU  Limited by
───────────────────────────────────────────────────
     0  alpha    1.00 s  1.00 s  1.00 s  the GPU
     1  alpha  ≤ 2.00 s  2.00 s  2.00 s  the host
slowest: engine 1 on alpha (1.3× the median wall time)
✗ engine 7: the engine died"""


def test_times() -> None:
    check_drawing(TIMING, TIMES)
    assert TIMING.gpu == Sample((1.0, 2.0))
    assert TIMING.failed == {7: "the engine died"}
    assert TIMING.slowest is TIMING.engines[1]
    pytest.importorskip("pandas")
    assert TIMING.to_pandas().loc[1, "gpu_time"] == 2.0


def test_engines_are_compared_by_one_quantity() -> None:
    """GPU time for some and wall time for others would make the latter slow."""
    one, other = timing(1.0, gpu=Sample((0.1,))), timing(1.0, gpu=None)
    mixed = ClusterTiming((EngineResult(0, "a", one), EngineResult(1, "a", other)))
    assert mixed.compared() == ("wall", {0: 1.0, 1: 1.0})
    assert str(ClusterTiming((DEAD,))) == "✗ engine 7: the engine died"


MEMORIES = """\
Engine  Host   Device  Allocated   Reserved  Peak above start
─────────────────────────────────────────────────────────────
     0  alpha  cuda:0  +1.00 MiB  +1.00 MiB         +2.00 MiB
     0  alpha  cuda:1        0 B        0 B               0 B
     1  alpha  cuda:0        0 B        0 B         +1.00 MiB
engine 2: torch is not imported
✗ engine 7: the engine died"""


def test_memory() -> None:
    check_drawing(MEMORY, MEMORIES)
    assert MEMORY.peak == {0: 2 * MIB, 1: MIB}
