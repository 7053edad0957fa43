"""Results to text and HTML. No measuring, no input or output.

Each kind of result is described once, as blocks (`grid`), by a function in the module named after
it; `text` draws the blocks for a terminal and `html` for a notebook.
"""

from __future__ import annotations

from functools import singledispatch
from typing import Any

from gpumagic.render.blocks import Block
from gpumagic.results import (
    ClusterMemory,
    ClusterSelection,
    ClusterTable,
    ClusterTiming,
    CudaTiming,
    DeviceTable,
    Diagnosis,
    Explanation,
    MemoryDelta,
    MemoryReport,
    ProcessGroup,
    Selection,
)
from gpumagic.results.cell_timings import CellTiming, TimingLog
from gpumagic.results.cells import CellHoldings, CellLog, CellMemory
from gpumagic.results.comparison import Comparison
from gpumagic.results.history import HistoryState, SnapshotFile
from gpumagic.results.holders import Freed, Holders
from gpumagic.results.kernels import KernelReport
from gpumagic.results.lines import LineReport
from gpumagic.results.oom import OutOfMemory


@singledispatch
def describe(result: Any) -> list[Block]:
    """The blocks (tables and lines) that show ``result``."""
    raise TypeError(f"gpumagic cannot show a {type(result).__name__}")


@describe.register
def _(result: DeviceTable) -> list[Block]:
    from gpumagic.render.devices import device_table

    return device_table(result)


@describe.register
def _(result: Selection) -> list[Block]:
    from gpumagic.render.devices import selection

    return selection(result)


@describe.register
def _(result: CudaTiming) -> list[Block]:
    from gpumagic.render.timing import timing

    return timing(result)


@describe.register
def _(result: Comparison) -> list[Block]:
    from gpumagic.render.comparison import comparison

    return comparison(result)


@describe.register
def _(result: KernelReport) -> list[Block]:
    from gpumagic.render.kernels import kernels

    return kernels(result)


@describe.register
def _(result: CellTiming) -> list[Block]:
    from gpumagic.render.cell_timings import cell_line

    return cell_line(result)


@describe.register
def _(result: TimingLog) -> list[Block]:
    from gpumagic.render.cell_timings import cell_log

    return cell_log(result)


@describe.register
def _(result: MemoryReport) -> list[Block]:
    from gpumagic.render.memory import report

    return report(result)


@describe.register
def _(result: MemoryDelta) -> list[Block]:
    from gpumagic.render.memory import delta

    return delta(result)


@describe.register
def _(result: Diagnosis) -> list[Block]:
    from gpumagic.render.diagnosis import diagnosis

    return diagnosis(result)


@describe.register
def _(result: Explanation) -> list[Block]:
    from gpumagic.render.diagnosis import explanation

    return explanation(result)


@describe.register
def _(result: CellMemory) -> list[Block]:
    from gpumagic.render.cells import cell_line

    return cell_line(result)


@describe.register
def _(result: CellLog) -> list[Block]:
    from gpumagic.render.cells import cell_log

    return cell_log(result)


@describe.register
def _(result: HistoryState) -> list[Block]:
    from gpumagic.render.history import history_state

    return history_state(result)


@describe.register
def _(result: SnapshotFile) -> list[Block]:
    from gpumagic.render.history import snapshot_file

    return snapshot_file(result)


@describe.register
def _(result: LineReport) -> list[Block]:
    from gpumagic.render.lines import line_report

    return line_report(result)


@describe.register
def _(result: CellHoldings) -> list[Block]:
    from gpumagic.render.cells import holdings

    return holdings(result)


@describe.register
def _(result: Holders) -> list[Block]:
    from gpumagic.render.holders import holders

    return holders(result)


@describe.register
def _(result: Freed) -> list[Block]:
    from gpumagic.render.holders import freed

    return freed(result)


@describe.register
def _(result: OutOfMemory) -> list[Block]:
    from gpumagic.render.oom import out_of_memory

    return out_of_memory(result)


@describe.register
def _(result: ClusterTable) -> list[Block]:
    from gpumagic.render.cluster import cluster_table

    return cluster_table(result)


@describe.register
def _(result: ClusterSelection) -> list[Block]:
    from gpumagic.render.cluster import cluster_selection

    return cluster_selection(result)


@describe.register
def _(result: ClusterTiming) -> list[Block]:
    from gpumagic.render.cluster import cluster_timing

    return cluster_timing(result)


@describe.register
def _(result: ClusterMemory) -> list[Block]:
    from gpumagic.render.cluster import cluster_memory

    return cluster_memory(result)


@describe.register
def _(result: ProcessGroup) -> list[Block]:
    from gpumagic.render.cluster import process_group

    return process_group(result)


def as_text(result: Any, width: int | None = None) -> str:
    """``result`` as text, ``width`` columns wide at most (default: see `text.columns`)."""
    from gpumagic.render.text import render

    return render(describe(result), width=width)


def as_html(result: Any) -> str:
    """``result`` as HTML that follows the notebook's light or dark theme."""
    from gpumagic.render.html import render

    return render(describe(result))


def mimebundle(result: Any) -> dict[str, str]:
    """Both, as Jupyter wants them."""
    return {"text/plain": as_text(result), "text/html": as_html(result)}
