"""Readings in a thread: by an NVML session of its own, without a call of CUDA."""

from __future__ import annotations

import os
import threading
from itertools import pairwise
from typing import Any

import pytest

import gpumagic
from gpumagic.cuda import devices, driver, nvml
from gpumagic.cuda.driver import DriverState
from gpumagic.cuda.sampler import RECENT, SampleLog, Sampler, _certain, differ
from gpumagic.errors import DeviceError
from gpumagic.results import Device, DeviceSample, Process, UtilizationSample

MIB, GIB = 2**20, 2**30
BEFORE = DriverState(loaded=True, initialized=False)


def test_it_reads_with_a_session_of_its_own(virtual_gpu: Any) -> None:
    virtual_gpu.set_gpu(1, utilization=33, temperature=55, power=250)
    virtual_gpu.add_process(0, 42424242, 3 * GIB, "someone")
    sampler = Sampler()
    before = virtual_gpu.calls("cu*")
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.extend(sampler.read(BEFORE, lambda: True)))
    thread.start()
    thread.join()
    assert virtual_gpu.calls("cu*") == before
    assert (found[1].utilization, found[1].temperature, found[1].power) == (33, 55, 250.0)
    # Earlier tests of this process may have made a context there.
    own = gpumagic.devices()[0].memory_own
    assert (found[0].memory_own, found[0].memory_others) == (own, 3 * GIB)
    nvml.session()
    nvml.close()  # the other one's end is not this one's
    assert len(sampler.read(BEFORE, lambda: True)) == 4
    sampler.close()


def test_memory_of_this_process_during_a_cell(virtual_gpu: Any) -> None:
    import torch

    block = torch.empty(GIB, dtype=torch.uint8, device="cuda:0")
    sampler = Sampler()
    # As of before the cell, CUDA was not in use.
    first, second, *_ = sampler.read(BEFORE, lambda: False)
    own = gpumagic.devices()
    known = sampler.read(driver.state(), lambda: True)
    sampler.close()
    assert first.memory_own is not None
    assert first.memory_own >= GIB
    # Earlier tests of this process may have made a context there.
    assert second.memory_own == known[1].memory_own == own[1].memory_own
    assert known[0].memory_own == first.memory_own
    del block
    torch.cuda.empty_cache()


@pytest.mark.parametrize("first_namespace", [True, False])
@pytest.mark.parametrize(
    ("processes", "is_known"),
    [(None, False), ((), None), ((Process(os.getpid(), 5, own=True),), True)],
)
def test_what_is_certain_while_a_cell_runs(
    monkeypatch: pytest.MonkeyPatch,
    processes: tuple[Process, ...] | None,
    is_known: bool | None,
    first_namespace: bool,
) -> None:
    monkeypatch.setattr(devices, "in_first_pid_namespace", lambda: first_namespace)
    device = Device(0, processes=processes, memory_own=5, memory_others=7)
    found = _certain(device)
    # An empty list is complete outside of containers only.
    if is_known is True or (is_known is None and first_namespace):
        assert found is device
    else:
        assert (found.memory_own, found.memory_others) == (None, None)


def test_without_nvml(virtual_gpu: Any) -> None:
    virtual_gpu.fault("nvmlInit*", 9)
    with pytest.raises(DeviceError, match="driver is not loaded"):
        Sampler()


# --- the samples that are kept: all of the last minute, and an even selection of the whole time ---


def filled(count: int) -> SampleLog:
    log = SampleLog(10)
    for i in range(count):
        log.add(1000 + i, [Device(0, utilization=i % 100)])
    return log


@pytest.mark.parametrize("count", [1, 10, 11, 1000])
def test_the_number_is_bounded_and_even_over_the_whole_time(count: int) -> None:
    log = filled(count)
    times = [sample.time for sample in log.samples]
    assert len(times) <= 12
    assert times[0] == 1000
    assert times[-1] == 999 + count
    steps = {b - a for a, b in pairwise(times[:-1])}
    assert steps <= {log.stride}


def test_the_last_minute_is_whole() -> None:
    log = filled(200)
    times = [sample.time for sample in log.recent]
    # The first one holds when the minute begins.
    assert times == [1199 - RECENT + i for i in range(int(RECENT) + 1)]


def test_a_lost_device_keeps_its_properties() -> None:
    log = SampleLog()
    log.add(1, [Device(0, ordinal=0, name="H100", memory_total=80)])
    log.add(2, [Device(0, error="GPU is lost")])
    (device,) = log.devices
    assert (device.name, device.memory_total, device.ordinal) == ("H100", 80, 0)
    assert log.recent[-1].devices[0].error == "GPU is lost"


BASE = DeviceSample(0, 50, 10 * MIB, 20 * MIB, 30 * MIB, 40, 100.0)


@pytest.mark.parametrize(
    ("other", "changed"),
    [
        (DeviceSample(0, 51, 10 * MIB, 20 * MIB + 1, 30 * MIB, 42, 105.0), False),
        (DeviceSample(0, 52, 10 * MIB, 20 * MIB, 30 * MIB, 40, 100.0), True),
        (DeviceSample(0, 50, 11 * MIB, 20 * MIB, 30 * MIB, 40, 100.0), True),
        (DeviceSample(0, 50, 10 * MIB, None, 30 * MIB, 40, 100.0), True),
        (DeviceSample(0, 50, 10 * MIB, 20 * MIB, 30 * MIB, 43, 100.0), True),
        (DeviceSample(0, 50, 10 * MIB, 20 * MIB, 30 * MIB, 40, 89.0), True),
        (DeviceSample(0, error="GPU is lost"), True),
    ],
)
def test_what_counts_as_a_change(other: DeviceSample, changed: bool) -> None:
    one, two = UtilizationSample(1, (BASE,)), UtilizationSample(2, (other,))
    assert differ(one, two) is differ(two, one) is changed


def test_another_number_of_devices_is_a_change() -> None:
    assert differ(UtilizationSample(1, (BASE,)), UtilizationSample(2))
