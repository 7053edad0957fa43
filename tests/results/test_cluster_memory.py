"""The change of GPU memory by a cell on the engines of a cluster."""

from __future__ import annotations

from gpumagic.results import ClusterMemory, DeviceMemoryDelta, EngineMemory, MemoryDelta
from tests.support.drawing import check_drawing

MIB = 2**20

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
Engine  Host   Rank  Device                 Allocated   Reserved  Peak above start
──────────────────────────────────────────────────────────────────────────────────
     0  alpha     –  cuda:0                 +1.00 MiB  +1.00 MiB         +2.00 MiB
     0  alpha     –  cuda:1                       0 B        0 B               0 B
     1  alpha     3  cuda:0                       0 B        0 B         +1.00 MiB
     2  beta      –  torch is not imported          –          –                 –
highest peak: +2.00 MiB at engine 0 on alpha; median +1.00 MiB
✗ engine 3: the engine has died
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
