"""The samples that are kept: all of the last minute, and an even selection of the whole time."""

from __future__ import annotations

from itertools import pairwise

import pytest

from gpumagic.cuda.sample_log import RECENT, SampleLog, differ
from gpumagic.results import Device, DeviceSample, UtilizationSample

MIB = 2**20


def filled(count: int, *, most: int = 3600, step: float = 1.0) -> SampleLog:
    log = SampleLog(most)
    for i in range(count):
        log.add(1000 + i * step, [Device(0, utilization=i % 100)])
    return log


@pytest.mark.parametrize("count", [1, 9, 10, 11, 12, 100, 1000])
def test_the_number_is_bounded_and_even_over_the_whole_time(count: int) -> None:
    log = filled(count, most=10)
    times = [sample.time for sample in log.samples]
    assert len(times) <= 12
    assert times[0] == 1000
    assert times[-1] == 999 + count
    steps = {b - a for a, b in pairwise(times[:-1])}
    assert steps <= {log.stride}


def test_the_last_minute_is_whole() -> None:
    log = filled(200, most=10)
    times = [sample.time for sample in log.recent]
    # The first one holds when the minute begins.
    assert times == [1199 - RECENT + i for i in range(int(RECENT) + 1)]
    slow = filled(5, step=100.0)
    assert [sample.time for sample in slow.recent] == [1300, 1400]


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
