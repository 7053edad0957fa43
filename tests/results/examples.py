"""A result of each type, as rich as its table can be: what tests of all results draw."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from gpumagic.results import (
    CellMemory,
    CellTiming,
    Explanation,
    HistoryState,
    Process,
    ProcessGroup,
    Result,
    Shutdown,
    SnapshotFile,
    WatchPanel,
)
from gpumagic.results.fit import Fit
from gpumagic.results.limit import LimitState
from gpumagic.results.memory_comparison import MemoryComparison
from gpumagic.results.notebooks import Notebook, NotebookTable
from gpumagic.results.parking import DeviceParking, ParkedMemory, Unparked
from gpumagic.results.work import Work
from tests.results import (
    test_cell_holdings,
    test_cell_memory,
    test_cell_timings,
    test_cluster_devices,
    test_cluster_memory,
    test_cluster_selection,
    test_cluster_timing,
    test_comparison,
    test_devices,
    test_fit,
    test_freed,
    test_holders,
    test_kernels,
    test_line_timing,
    test_lines,
    test_memory,
    test_oom,
    test_selection,
    test_timing,
    test_watch,
    test_watch_panel,
)

GIB = 2**30
MINE = [Process(20 + i, GIB, user="me", command="python train.py", mine=True) for i in range(5)]
OTHERS = [
    Process(30 + i, GIB, user="ann", command="python secret.py", mine=False) for i in range(2)
]
KERNEL = Process(
    40, GIB, user="me", command="python", mine=True, notebook="a.ipynb", folder="/srv", idle=90.0
)


def _device_table() -> Result:
    first = test_devices.FULL[0]
    device = replace(first, processes=(*(first.processes or ()), *MINE, *OTHERS, KERNEL))
    return replace(test_devices.FULL, devices=(device, *test_devices.FULL[1:]))


def _parked() -> Result:
    stays = {"C++ code may use it": GIB}
    return ParkedMemory({0: DeviceParking(3 * GIB, stays, 5 * GIB, 2 * GIB, GIB // 2)}, 2.0)


_ALL: tuple[Result, ...] = (
    test_cell_holdings.HOLDINGS,
    test_cell_memory.LOG,
    CellMemory(2, "x", 0.1, {0: test_cell_memory.SOME, 1: test_cell_memory.FAILED}),
    CellTiming(4, "step()", 2.0, 0.5, 0.25, 1.5, {0: 1.0, 1: 1.5}, used_gpu=True),
    test_cell_timings.LOG,
    test_cluster_devices.TABLE,
    test_cluster_memory.MEMORY,
    test_cluster_selection.SELECTION,
    test_cluster_timing.TIMING,
    test_comparison.COMPARISON,
    _device_table(),
    Explanation("the reason"),
    Work(("17.2 GFLOP per loop · ≥ 44.5 TFLOP/s",), ("a note",)),
    Fit("batch", 60, test_fit.RUNS, True, 2**20, 2**21, ("a note",)),
    test_freed.FREED,
    HistoryState(True, own=True, max_entries=7, message="Recording begins."),
    test_holders.HOLDERS,
    test_kernels.REPORT,
    LimitState(16 * GIB),
    test_lines.REPORT,
    test_line_timing.timings(verdict="GPU-bound: so it is", notes=("a note",)),
    test_memory.DELTA,
    test_memory.REPORT,
    MemoryComparison({0: (3 * GIB, 2 * GIB), 1: (GIB, 2 * GIB), 2: (GIB, 0)}, ("a note",)),
    NotebookTable(
        (
            Notebook("train.ipynb", "train.ipynb", "/srv", 11, {0: GIB, 1: GIB}, 0.0, True),
            Notebook("eval.ipynb", "eval.ipynb", "/srv", 12, {2: None}, 7200.0),
            Notebook("idle.ipynb"),
        )
    ),
    test_oom.OOM,
    _parked(),
    ProcessGroup({0: 1, 4: 0}, "gloo", failed={7: "late", 8: "late"}, notes=("a note",)),
    test_selection.LATE,
    Shutdown(Notebook("eval.ipynb", devices={0: GIB}), True),
    SnapshotFile("a.pickle", 2048, 7),
    test_timing.REPEATED,
    Unparked({0: GIB, 1: 2 * GIB}, 2, 0.5, 61.0),
    test_watch.HISTORY,
    WatchPanel(test_watch_panel.DEVICES, test_watch_panel.SAMPLES, 1.0),
)
#: By the name of the type.
EXAMPLES: Mapping[str, Result] = {type(result).__name__: result for result in _ALL}
