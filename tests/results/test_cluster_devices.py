"""The devices that the engines of a cluster see."""

from __future__ import annotations

from typing import Any

import pytest

from gpumagic.results import ClusterTable, Device, DeviceTable, EngineDevices, Process
from tests.support.drawing import check_drawing

GIB = 2**30


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
Host   GPU  Engines        Name              Memory used / total  Util  Processes
─────────────────────────────────────────────────────────────────────────────────
alpha    0  0–1 as cuda:0  H100     ██       1.00 GiB / 4.00 GiB   5 %          1
         1  1 as cuda:1    H100     ██       1.00 GiB / 4.00 GiB     –          –
beta     –  2              no NVML
gamma    0  3 as cuda:0    H100                ✗ the GPU is lost
✗ engines 4–5: no answer in 10 s
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
