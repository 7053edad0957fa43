"""A result of each type, as rich as its table can be: what tests of results draw."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from gpumagic.cluster import cell_results
from gpumagic.cluster import results as cluster
from gpumagic.doctor.diagnosis import Diagnosis, Finding
from gpumagic.magics.gpu.watch_history import CellSpan, WatchHistory, WatchPanel, WatchSample
from gpumagic.magics.gpumem.fit_result import Fit, FitRun
from gpumagic.results.base import Result
from gpumagic.results.devices import Device, DeviceTable
from gpumagic.results.memory import cell_holdings, freed, history, holders, limit
from gpumagic.results.memory.line_memory import LineMemory, LineReport, SourceLines
from gpumagic.results.memory.memory_delta import DeviceMemoryDelta, MemoryComparison, MemoryDelta
from gpumagic.results.memory.memory_log import CellLog, CellMemory
from gpumagic.results.memory.memory_report import DeviceMemory, MemoryReport
from gpumagic.results.memory.out_of_memory import OutOfMemory
from gpumagic.results.processes import Process
from gpumagic.results.selection import Selection, WayOut
from gpumagic.results.source_table import BETWEEN
from gpumagic.results.timing.comparison import Compared, Comparison, Ratio
from gpumagic.results.timing.cuda_timing import CudaTiming
from gpumagic.results.timing.kernels import Kernel, KernelReport
from gpumagic.results.timing.line_timings import LineTiming, LineTimings, SourceTimings
from gpumagic.results.timing.sample import Sample
from gpumagic.results.timing.timing_log import CellTiming, TimingLog

MIB, GIB = 2**20, 2**30
SOME = DeviceMemoryDelta(MIB, 2 * MIB, MIB, 3 * MIB, 4 * MIB)
RESERVED = DeviceMemoryDelta(0, -2 * MIB, 0, 0, 2 * MIB)
OUT_OF_MEMORY_IN_A_CELL = DeviceMemoryDelta(0, 0, GIB, GIB, 2 * GIB, ooms=1)
CELL_LOG = CellLog(
    (
        CellMemory(1, "import torch", 2.5),
        CellMemory(2, "x = " + "very_" * 20 + "long", 0.012, {0: SOME, 1: SOME, 2: RESERVED}),
        CellMemory(None, "step()", 61, {0: OUT_OF_MEMORY_IN_A_CELL}, failed=True),
    ),
)
GPU_CELL = CellTiming(4, "step()", 2.0, 0.5, 0.25, 1.5, {0: 1.0, 1: 1.5}, used_gpu=True)
AT_MOST_CELL = CellTiming(
    None, "train(" + "a, " * 20 + ")", 0.02, 0.02, 0.02, 0.01, gpu_at_most=True, used_gpu=True
)
FAILED_CELL = CellTiming(6, "1 / 0", 0.0, 0.0, 0.0, failed=True)
TIMING_LOG = TimingLog((GPU_CELL, AT_MOST_CELL, FAILED_CELL))


def device(index: int, ordinal: int | None, **fields: Any) -> Device:
    common = {"uuid": f"GPU-{index}", "name": "H100", "memory_used": GIB, "memory_total": 4 * GIB}
    return Device(index, ordinal, visible=ordinal is not None, **{**common, **fields})


USED = device(0, 0, utilization=5, processes=(Process(70, GIB, user="ann", command="python"),))
DEAD = cluster.EngineResult(7, error="the engine died")
CLUSTER_TABLE = cluster.ClusterTable(
    (
        cluster.EngineResult(0, "alpha", DeviceTable((USED, device(1, None)))),
        cluster.EngineResult(1, "alpha", DeviceTable((USED, device(1, 1)))),
        cluster.EngineResult(2, "beta", DeviceTable(error="no NVML")),
        cluster.EngineResult(3, "gamma", DeviceTable((device(0, 0, error="the GPU is lost"),))),
        cluster.EngineResult(4, error="no answer in 10 s"),
        cluster.EngineResult(5, error="no answer in 10 s"),
    ),
    source="profile default",
)
TWO = MemoryDelta({0: DeviceMemoryDelta(MIB, MIB, 2 * MIB), 1: DeviceMemoryDelta(0, 0, 0)})
CLUSTER_MEMORY = cell_results.ClusterMemory(
    (
        cluster.EngineResult(0, "alpha", TWO),
        cluster.EngineResult(1, "alpha", MemoryDelta({0: DeviceMemoryDelta(0, 0, MIB)})),
        cluster.EngineResult(2, "beta", MemoryDelta(error="torch is not imported")),
        DEAD,
    )
)


def selected(
    engine: int, status: Any, *ordinals: int | None, **fields: Any
) -> cluster.EngineResult:
    devices = tuple(Device(i, ordinal) for i, ordinal in enumerate(ordinals))
    return cluster.EngineResult(engine, "alpha", Selection("0", {}, status, devices, **fields))


CLUSTER_SELECTION = cluster.ClusterSelection(
    (
        selected(0, "applied", 0),
        selected(1, "applied", 0, notes=("a note",)),
        selected(2, "too-late", 0, 1, 2, 3, None),
        selected(3, "unchanged"),
        DEAD,
    ),
    "0",
)


def timing(*gpu: float, **fields: Any) -> CudaTiming:
    sample = Sample(gpu)
    return CudaTiming(**{"gpu": sample, "wall": sample, "cpu": sample, **fields})


SINGLE = timing(
    0.010,
    wall=Sample((0.012,)),
    cpu=Sample((0.0,)),
    per_device={1: Sample((0.010,))},
    host=Sample((0.001,)),
    compile_time=0.5,
    notes=("a note",),
)
REPEATED = timing(
    0.010,
    0.011,
    0.030,
    per_device={0: Sample((0.010, 0.011, 0.030)), 1: Sample((0.001, 0.001, 0.001))},
    loops=10,
    repeat=3,
    host=Sample((0.002, 0.002, 0.002)),
    limited_by="gpu",
    limit_evidence="the queue was never empty",
    gpu_at_most=True,
    precision=0.012,
    stopped_by="precision",
    energy=0.5,
    power=123.0,
)
CLUSTER_TIMING = cell_results.ClusterTiming(
    (
        cluster.EngineResult(0, "alpha", timing(1.0, limited_by="gpu")),
        cluster.EngineResult(1, "alpha", timing(2.0, gpu_at_most=True, limited_by="host")),
        DEAD,
    )
)


PROCESSES = (
    Process(7, 10 * GIB, user="ann", command="python <b>x</b>", own=False),
    Process(9, 50 * GIB, user="me", command="ipykernel", own=True),
)
MEMORY = {"memory_total": 80 * GIB, "memory_used": 60 * GIB, "memory_own": 50 * GIB}
FIGURES = {"utilization": 97, "temperature": 61, "power": 412.4, "power_limit": 700.0}
DEVICES = DeviceTable(
    (
        device(0, 1, uuid="GPU-a", processes=PROCESSES, **MEMORY, **FIGURES),
        Device(1, uuid="GPU-b", name="H100", visible=False),
        Device(2, name="H100", error="the GPU is lost", visible=None),
    ),
    {"CUDA_VISIBLE_DEVICES": "GPU-a"},
    cuda_initialized=True,
    show_processes=True,
)
FITS = ((1, 3 * MIB), (2, 4 * MIB), (60, 62 * MIB), (61, None))
FIT_RUNS = tuple(FitRun(value, peak) for value, peak in FITS)


def holder(name: str, size: int, **fields: object) -> holders.Holder:
    common = {"kind": "tensor", "parts": {"": size}, "blocks": 1, "frees": size}
    return holders.Holder(name, bytes=size, **{**common, **fields})  # type: ignore[arg-type]


MODEL = holder(
    "model",
    4 * GIB,
    kind="module",
    parts={"parameters": 3 * GIB, "buffers": GIB},
    blocks=12,
    frees=GIB,
    also=("optimizer", "trainer", "ema", "best"),
)
HELD = holders.DeviceHolders(
    8 * GIB,
    named=5 * GIB,
    notebook=GIB,
    unattributed=2 * GIB - 64,
    rounding=64,
    holders=(
        MODEL,
        holder("state", GIB, kind="optimizer", parts={"optimizer state": GIB}),
        holder("Out[3]", GIB, by_notebook=True, frees=0),
        holder("view", 0, blocks=0),
    ),
)
HOLDERS = holders.Holders({0: HELD, 1: holders.DeviceHolders(0, 0, 0, 0, 0)}, notes=("a note",))
ADD = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, "
    "std::array<char*, 3ul> >(int, at::native::CUDAFunctor_add<float>, std::array<char*, 3ul>)"
)
GEMM = "ampere_sgemm_128x64_tn"
KERNELS = KernelReport(
    (
        Kernel(GEMM, 1, 30e-6),
        Kernel(ADD, 2, 10e-6),
        Kernel("Memcpy HtoD (Pageable -> Device)", 1, 10e-6),
    ),
    trace="trace.json",
)
LINE_TEXT = (
    *("import torch", "for x in loader:", "    y = model(x)", "    y.item()"),
    *["pass"] * 20,
    "z = 1",
)


def line(number: int, gpu: float | None, host: float, **more: Any) -> LineTiming:
    fields = {"hits": 3, "source": LINE_TEXT[number - 2], **more}
    return LineTiming(number, gpu=gpu, host=host, **fields)


LINES = (
    line(3, 0.05, 0.1, at_most=True, hits=4),
    line(4, 0.5, 0.01),
    line(5, 0.01, 0.3, syncs=4, sync_time=0.25),
    line(26, 0.0, 0.0, hits=1),
)


def lines_of(lines: tuple[LineTiming, ...] = LINES, **more: Any) -> LineTimings:
    between = LineTiming(0, BETWEEN, 0, 0.002, 0.003, at_most=True)
    return LineTimings(SourceTimings("cell", 2, LINE_TEXT, lines), between=between, **more)


OOM = OutOfMemory(
    device=0,
    name="NVIDIA H100",
    requested=20 * GIB,
    where="In[5] line 3 in forward",
    source="h = self.net(x)",
    total=80 * GIB,
    free=2 * GIB,
    reserved=60 * GIB,
    allocated=50 * GIB,
    outside=GIB,
    others=17 * GIB,
    limit=78 * GIB,
    fragmented="PYTORCH_ALLOC_CONF=expandable_segments:True",
    holders=(
        holder("model", 40 * GIB, kind="module", parts={"weights": 30 * GIB, "": 10 * GIB}),
        holder("Out[3]", 5 * GIB, also=("x",), by_notebook=True),
    ),
    unattributed=5 * GIB,
    recoverable=15 * GIB,
    notes=("a note",),
)
LATE = Selection(
    "off",
    {"CUDA_VISIBLE_DEVICES": "-1"},
    "too-late",
    (Device(0, ordinal=0, name="NVIDIA H100"),),
    problem="Too late for 'off': torch has initialised CUDA",
    where="CUDA was initialised while cell [2] ran `x = f()` (line 3)",
    ways_out=(
        WayOut("%gpu off --restart", "a fresh process"),
        WayOut("%gpu off --soft", "nothing is lost"),
    ),
)


def sample(time: float, *utilizations: int | None) -> WatchSample:
    figures = {"memory_total": 80 * GIB, "memory_used": 3 * GIB, "temperature": 40, "power": 100.5}
    memory = ({"memory_own": GIB, "memory_others": 0}, {"memory_own": 0, "memory_others": GIB})
    idle = {"memory_own": 0, "memory_others": 0}
    devices = (
        device(i, i if i < 2 else None, utilization=used, **figures, **(*memory, idle)[i])
        for i, used in enumerate(utilizations)
    )
    return WatchSample(time, tuple(devices))


HISTORY = WatchHistory(
    # The second sample holds for eight seconds, the third for one.
    (sample(0, 0, None, 0), sample(1, 100, None, 0), sample(9, 50, None, 0), sample(10, 0, 7, 0)),
    (CellSpan(3, 0.5, 4), CellSpan(4, 5, 9.5, failed=True), CellSpan(5, 9.9)),
)
PANEL = WatchPanel(sample(time.mktime((2026, 1, 2, 3, 4, 5, 0, 0, -1)), 10, 90))

HELD_BEFORE = {0: freed.Held(GIB, GIB), 1: freed.Held(2 * GIB, 2 * GIB)}
HELD_AFTER = {**HELD_BEFORE, 0: freed.Held(0, GIB)}
FREED = freed.Freed((freed.FreeStep("drop " + "x" * 60, HELD_AFTER),), HELD_BEFORE)
CELL_HOLDINGS = cell_holdings.CellHoldings(
    {0: (cell_holdings.CellHolding(3, "x", GIB, 2), cell_holdings.CellHolding(None, "y", GIB, 1))}
)
SOURCE = ("if True:", "    a = f(2)", *["pass"] * 12, "\tb = f(1)")
BY_LINE = {0: {3: LineMemory(2 * MIB, 2 * MIB), 16: LineMemory(0, MIB)}}
LINE_REPORT = LineReport(
    TWO,
    (
        SourceLines("cell", 2, SOURCE, BY_LINE, runs={2: 1, 3: 1200, 6: 7, 16: 1}),
        SourceLines("f", 1, ("def f(n):",)),
    ),
)
IN_CELLS = MemoryDelta({0: SOME, 1: RESERVED, 2: replace(OUT_OF_MEMORY_IN_A_CELL, retries=2)})
CHANGED = DeviceMemory(GIB, 2 * GIB, GIB, 60 * GIB, 80 * GIB, allocated_change=-GIB)
COMPARISON = Comparison(
    (
        Compared("baseline", timing(0.010, 0.010, repeat=2)),
        Compared("fused", timing(0.005, 0.005), Ratio(0.5, (0.48, 0.52), "faster")),
        Compared("once", timing(0.010)),
    )
)

DIAGNOSIS = Diagnosis(
    "torch can use 1 GPU here.",
    1,
    (
        Finding("driver", "ok", "version 1 <script>"),
        Finding("pynvml", "warn", "not installed", "%pip install nvidia-ml-py"),
        Finding("NVML", "bad", "gone"),
        Finding("device files", "unknown", "none"),
    ),
)

#: Results of all types, by the name of the type.
EXAMPLES: Mapping[str, Result] = {
    type(result).__name__: result
    for result in (
        *(CELL_LOG, CELL_LOG[1], TIMING_LOG, GPU_CELL, REPEATED, KERNELS, COMPARISON, LINE_REPORT),
        *(CLUSTER_TABLE, CLUSTER_MEMORY, CLUSTER_SELECTION, CLUSTER_TIMING),
        *(DEVICES, LATE, HISTORY, PANEL, DIAGNOSIS),
        *(HOLDERS, CELL_HOLDINGS, OOM, FREED, IN_CELLS, MemoryReport({0: CHANGED})),
        *(MemoryComparison({0: (3 * GIB, 2 * GIB)}), lines_of(verdict="so", notes=("a note",))),
        *(history.HistoryState(True), history.SnapshotFile("a.pickle", 2048)),
        *(limit.LimitState(GIB), Fit("batch", 60, FIT_RUNS, True)),
    )
}
