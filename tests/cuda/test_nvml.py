"""NVML's fields of a device. Fields that it refuses: tests/magics/gpu/test_faults.py."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from gpumagic.cuda import driver, nvml
from gpumagic.errors import DeviceError

GIB = 2**30


@pytest.fixture(autouse=True)
def _fresh_session(virtual_gpu: Any) -> Iterator[None]:
    nvml.close()
    yield
    nvml.close()


def test_a_device_as_nvml_measures_it(virtual_gpu: Any) -> None:
    virtual_gpu.set_gpu(1, utilization=33, temperature=55, power=250)
    virtual_gpu.add_process(1, 42424242, 3 * GIB, "a process")
    readings = nvml.session().read()
    assert [reading["index"] for reading in readings] == [0, 1, 2, 3]
    reading = readings[1]
    assert (reading["utilization"], reading["temperature"], reading["power"]) == (33, 55, 250.0)
    assert reading["memory_used"] + reading["memory_free"] <= reading["memory_total"]
    # Beside it there may be this process, by another test.
    assert [p.memory for p in reading["processes"] if p.pid == 42424242] == [3 * GIB]
    assert reading["mig"] == ()
    assert "error" not in reading


def test_the_session_is_kept_until_it_is_closed() -> None:
    first = nvml.session()
    assert nvml.session() is first
    nvml.close()
    nvml.close()
    assert nvml.session() is not first


def test_a_lost_device_keeps_its_identity_alone(virtual_gpu: Any) -> None:
    whole = nvml.session().read()[2]
    virtual_gpu.lose(2)
    lost = nvml.session().read()[2]
    assert lost.keys() == {"index", "uuid", "name", "compute_capability", "error"}
    assert (lost["uuid"], lost["name"]) == (whole["uuid"], whole["name"])
    assert lost["error"].startswith("the GPU is lost")


def test_why_nvml_does_not_start_without_a_driver(
    virtual_gpu: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    virtual_gpu.fault("nvmlInitWithFlags", 12)
    monkeypatch.setattr(driver, "installed", lambda: False)
    with pytest.raises(DeviceError, match="NVML is not installed: there is no NVIDIA driver"):
        nvml.session()
