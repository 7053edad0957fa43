"""The results of several engines: devices, selections, times, memory, process groups."""

from __future__ import annotations

from typing import Any

import pytest

from gpumagic.results import (
    ClusterMemory,
    ClusterSelection,
    ClusterTable,
    ClusterTiming,
    CudaTiming,
    Device,
    DeviceMemoryDelta,
    DeviceTable,
    EngineDevices,
    EngineMemory,
    EngineSelection,
    EngineTiming,
    Kernel,
    KernelReport,
    MemoryDelta,
    Process,
    ProcessGroup,
    Sample,
    Selection,
)
from gpumagic.results.base import as_text
from gpumagic.results.cluster_engines import engine_ids, highest
from tests.support.drawing import check_drawing

GIB = 2**30
MIB = 2**20

# --- devices -------------------------------------------------------------------------------------


def device(index: int, ordinal: int | None, **fields: Any) -> Device:
    common = {"uuid": f"GPU-{index}", "name": "H100", "memory_used": GIB, "memory_total": 4 * GIB}
    return Device(index, ordinal, visible=ordinal is not None, **{**common, **fields})


USED = device(0, 0, utilization=5, processes=(Process(70, GIB, user="ann", command="python"),))
TABLE = ClusterTable(
    (
        EngineDevices(0, "alpha", 70, table=DeviceTable((USED, device(1, None)))),
        EngineDevices(1, "alpha", 71, table=DeviceTable((USED, device(1, 1)))),
        EngineDevices(2, "beta", 72, table=DeviceTable(error="no NVML")),
        EngineDevices(3, "gamma", 73, table=DeviceTable((device(0, 0, error="the GPU is lost"),))),
        EngineDevices(4, error="no answer in 10 s"),
        EngineDevices(5, error="no answer in 10 s"),
    ),
    source="profile default",
    show_processes=True,
)
DEVICES = """\
Host   GPU  Engines        Name     Memory used / total           Util  Processes
─────────────────────────────────────────────────────────────────────────────────
alpha    0  0–1 as cuda:0  H100     ██░░░░░░ 1.00 GiB / 4.00 GiB   5 %          1
         1  1 as cuda:1    H100     ██░░░░░░ 1.00 GiB / 4.00 GiB     –          –
beta     –  2              no NVML
gamma    0  3 as cuda:0    H100     the GPU is lost
engines 4–5: no answer in 10 s
4 of 6 engines on 3 hosts (profile default)
Host   GPU  PID  Engine  User    Memory  Command
────────────────────────────────────────────────
alpha    0   70       0  ann   1.00 GiB  python"""


def test_drawing_of_devices() -> None:
    check_drawing(TABLE, DEVICES)
    check_drawing(ClusterTable(source="a file"), "0 engines on 0 hosts (a file)")


def test_devices_as_data() -> None:
    assert list(TABLE.hosts) == ["alpha", "beta", "gamma"]
    assert [each.engine for each in TABLE.silent] == [4, 5]
    assert repr(TABLE) == "<ClusterTable: 6 engines>"
    pytest.importorskip("pandas")
    assert TABLE.to_pandas().loc[(1, 1), "ordinal"] == 1


# --- selections ----------------------------------------------------------------------------------


def selected(engine: int, status: Any, *ordinals: int | None) -> EngineSelection:
    devices = tuple(Device(i, ordinal) for i, ordinal in enumerate(ordinals))
    return EngineSelection(engine, "alpha", selection=Selection("0", {}, status, devices))


SELECTION = ClusterSelection(
    "0",
    (
        selected(0, "applied", 0),
        selected(1, "applied", 0),
        selected(2, "too-late", 0, 1, 2, 3, None),
        selected(3, "unchanged"),
        EngineSelection(4, error="the engine has died"),
    ),
    notes=("a note",),
)
SELECTIONS = """\
Engine  Host   Status     Sees
────────────────────────────────────────────────────────────────────────────────────────────────────
   0–1  alpha  applied    cuda:0 = GPU 0
     2  alpha  too-late   cuda:0 = GPU 0, cuda:1 = GPU 1, cuda:2 = GPU 2, cuda:3 = GPU 3, … (5 GPUs)
     3  alpha  unchanged  no GPU
engine 4: the engine has died
a note"""


def test_drawing_of_selections() -> None:
    check_drawing(SELECTION, SELECTIONS)


def test_selections_as_data() -> None:
    assert SELECTION.too_late == (2,)
    assert SELECTION.targets == (0, 1, 2)
    assert repr(SELECTION) == "<ClusterSelection '0': 5 engines>"


# --- times ---------------------------------------------------------------------------------------


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
over the engines    median       min       max
──────────────────────────────────────────────
GPU               ≤ 1.50 s  ≤ 1.00 s  ≤ 2.00 s
Wall                1.50 s    1.00 s    2.00 s
CPU                 1.50 s    1.00 s    2.00 s
     Engine  Host   Rank       GPU    Wall     CPU  limited by
──────────────────────────────────────────────────────────────
          0  alpha     1    1.00 s  1.00 s  1.00 s  the GPU
          1  alpha     0  ≤ 2.00 s  2.00 s  2.00 s  the host
2 (partial)  beta      –    500 ms  500 ms  500 ms  –
straggler: engine 1 on alpha took 1.3 × the median
host-bound, the GPU waits for work to be launched: engine 1
the engines started when the cell reached them; ranks of a process group (%gpu dist init) start together
engine 0
kernel  count   total           share    mean
─────────────────────────────────────────────
gemm        1  1.00 s  ████████ 100 %  1.00 s
1 kernel, as many as launched (1 launch)
engine 2: KeyboardInterrupt
engine 3: the engine has died
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


# --- memory --------------------------------------------------------------------------------------

MEMORY = ClusterMemory(
    (
        EngineMemory(
            0,
            "alpha",
            delta=MemoryDelta(
                {0: DeviceMemoryDelta(MIB, MIB, 2 * MIB), 1: DeviceMemoryDelta(0, 0, 0)}
            ),
        ),
        EngineMemory(1, "alpha", rank=3, delta=MemoryDelta({0: DeviceMemoryDelta(0, 0, MIB)})),
        EngineMemory(2, "beta", delta=MemoryDelta(error="torch is not imported")),
        EngineMemory(3, error="the engine has died"),
    ),
    notes=("a note",),
)
MEMORIES = """\
Engine  Host   Rank  Device                 allocated   reserved       peak
───────────────────────────────────────────────────────────────────────────
     0  alpha     –  cuda:0                 +1.00 MiB  +1.00 MiB  +2.00 MiB
     0  alpha     –  cuda:1                       0 B        0 B        0 B
     1  alpha     3  cuda:0                       0 B        0 B  +1.00 MiB
     2  beta      –  torch is not imported          –          –          –
highest peak: +2.00 MiB at engine 0 on alpha; median +1.00 MiB
engine 3: the engine has died
a note"""


def test_drawing_of_memory() -> None:
    check_drawing(MEMORY, MEMORIES)


def test_memory_as_data() -> None:
    assert MEMORY.peak == {0: 2 * MIB, 1: MIB}
    assert MEMORY.highest is MEMORY.engines[0]
    assert MEMORY.failed == {3: "the engine has died"}
    assert list(MEMORY.per_engine) == [0, 1, 2]
    assert ClusterMemory().highest is None
    assert repr(MEMORY) == "<ClusterMemory: 4 engines>"


# --- process groups ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("group", "text"),
    [
        (ProcessGroup(), "no process group; %gpu dist init creates one of the engines"),
        (
            ProcessGroup({0: 0, 1: 1}, "nccl", "10.0.0.1:7"),
            "process group: 2 ranks, backend nccl  (rank = engine id; rendezvous at 10.0.0.1:7)",
        ),
        (
            ProcessGroup({0: 1, 4: 0}, "gloo", failed={7: "late", 8: "late"}, notes=("a note",)),
            "process group: 2 ranks, backend gloo  (ranks 0 to 1 are [4, 0])\n"
            "engines 7–8: late\na note",
        ),
        (ProcessGroup(notes=("left",)), "left"),
    ],
)
def test_drawing_of_a_process_group(group: ProcessGroup, text: str) -> None:
    check_drawing(group, text)


def test_repr_of_a_process_group() -> None:
    assert repr(ProcessGroup({0: 0}, "nccl")) == "<ProcessGroup: 1 rank, nccl>"
    assert repr(ProcessGroup()) == "<ProcessGroup: 0 ranks, not initialised>"


# --- what they share -----------------------------------------------------------------------------


def test_engine_ids() -> None:
    assert engine_ids([3]) == "engine 3"
    assert engine_ids([0, 2, 1, 7]) == "engines 0–2, 7"


def test_the_highest_of_many() -> None:
    engines = [EngineTiming(i) for i in range(16)]
    assert highest(engines, lambda each: -each.engine) == engines
    engines.append(EngineTiming(16))
    assert highest(engines, lambda each: -each.engine) == engines[:8]
