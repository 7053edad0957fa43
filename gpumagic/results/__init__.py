"""What the magics return: frozen dataclasses, data only.

Units are bytes, seconds, percent, degrees Celsius and watts. What the hardware or the driver cannot
report is ``None``, never 0. How a result looks is the business of ``gpumagic.render``; results
only know that they can be shown.
"""

from __future__ import annotations

from gpumagic.results.base import Result
from gpumagic.results.cell_timings import CellTiming, TimingLog
from gpumagic.results.cells import CellHolding, CellHoldings, CellLog, CellMemory
from gpumagic.results.cluster import (
    ClusterMemory,
    ClusterSelection,
    ClusterTable,
    ClusterTiming,
    EngineDevices,
    EngineMemory,
    EngineSelection,
    EngineTiming,
    ProcessGroup,
)
from gpumagic.results.comparison import Compared, Comparison, Quantity, Verdict
from gpumagic.results.devices import (
    Device,
    DeviceTable,
    MigInstance,
    Process,
    Selection,
    Status,
)
from gpumagic.results.diagnosis import Diagnosis, Explanation, Finding, Health
from gpumagic.results.history import HistoryState, SnapshotFile
from gpumagic.results.holders import DeviceHolders, Freed, FreeStep, Holder, Holders, Site
from gpumagic.results.kernels import Copy, Kernel, KernelReport
from gpumagic.results.lines import LineMemory, LineReport, SourceLines
from gpumagic.results.memory import DeviceMemory, DeviceMemoryDelta, MemoryDelta, MemoryReport
from gpumagic.results.oom import OutOfMemory, Remedy
from gpumagic.results.timing import Bound, CudaTiming, Sample

__all__ = [
    "Bound",
    "CellHolding",
    "CellHoldings",
    "CellLog",
    "CellMemory",
    "CellTiming",
    "ClusterMemory",
    "ClusterSelection",
    "ClusterTable",
    "ClusterTiming",
    "Compared",
    "Comparison",
    "Copy",
    "CudaTiming",
    "Device",
    "DeviceHolders",
    "DeviceMemory",
    "DeviceMemoryDelta",
    "DeviceTable",
    "Diagnosis",
    "EngineDevices",
    "EngineMemory",
    "EngineSelection",
    "EngineTiming",
    "Explanation",
    "Finding",
    "FreeStep",
    "Freed",
    "Health",
    "HistoryState",
    "Holder",
    "Holders",
    "Kernel",
    "KernelReport",
    "LineMemory",
    "LineReport",
    "MemoryDelta",
    "MemoryReport",
    "MigInstance",
    "OutOfMemory",
    "Process",
    "ProcessGroup",
    "Quantity",
    "Remedy",
    "Result",
    "Sample",
    "Selection",
    "Site",
    "SnapshotFile",
    "SourceLines",
    "Status",
    "TimingLog",
    "Verdict",
]
