"""The results of the magics: frozen dataclasses, each with the blocks that show it.

Units are bytes, seconds, percent, degrees Celsius and watts. A value that the hardware or the
driver does not report is ``None``, never 0. A new result is one new file here. A name of
this package is imported from its file when it is first used: a magic needs a few of them.
"""

# For type checkers, these names are the package's own.
# mypy: implicit-reexport
# ruff: noqa: F401

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpumagic.results.allocator import Freed, FreeStep, HistoryState, LimitState, SnapshotFile
    from gpumagic.results.base import Explanation, Result
    from gpumagic.results.cluster import ClusterSelection, ClusterTable, EngineResult
    from gpumagic.results.cluster_cells import ClusterMemory, ClusterTiming
    from gpumagic.results.comparison import Compared, Comparison, Quantity, Verdict
    from gpumagic.results.devices import Device, DeviceTable, MigInstance
    from gpumagic.results.holders import (
        CellHolding,
        CellHoldings,
        DeviceHolders,
        Holder,
        Holders,
        OutOfMemory,
    )
    from gpumagic.results.kernels import Kernel, KernelReport
    from gpumagic.results.lines import LineMemory, LineReport, SourceLines
    from gpumagic.results.logs import CellLog, CellMemory, CellTiming, TimingLog
    from gpumagic.results.memory import DeviceMemory, DeviceMemoryDelta, MemoryDelta, MemoryReport
    from gpumagic.results.processes import Claim, Process
    from gpumagic.results.selection import Selection, Status, WayOut
    from gpumagic.results.timing import Bound, CudaTiming, Sample
    from gpumagic.results.watch import CellSpan, WatchHistory, WatchPanel, WatchSample

#: The file of each name.
_FILES = {
    name: file
    for file, names in {
        "allocator": "FreeStep Freed HistoryState LimitState SnapshotFile",
        "base": "Explanation Result",
        "cluster": "ClusterSelection ClusterTable EngineResult",
        "cluster_cells": "ClusterMemory ClusterTiming",
        "comparison": "Compared Comparison Quantity Verdict",
        "devices": "Device DeviceTable MigInstance",
        "processes": "Claim Process",
        "holders": "CellHolding CellHoldings DeviceHolders Holder Holders OutOfMemory",
        "kernels": "Kernel KernelReport",
        "lines": "LineMemory LineReport SourceLines",
        "logs": "CellLog CellMemory CellTiming TimingLog",
        "memory": "DeviceMemory DeviceMemoryDelta MemoryDelta MemoryReport",
        "selection": "Selection Status WayOut",
        "timing": "Bound CudaTiming Sample",
        "watch": "CellSpan WatchHistory WatchPanel WatchSample",
    }.items()
    for name in names.split()
}


def __getattr__(name: str) -> Any:
    """Import a result when it is first used (PEP 562)."""
    if name not in _FILES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"{__name__}.{_FILES[name]}"), name)
    return value
