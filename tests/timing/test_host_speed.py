"""The host's speed beside a measurement: a fixed piece of work before and after the repeats."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import accumulate, cycle
from pathlib import Path
from typing import Any

import pytest

import gpumagic
from gpumagic.results import CudaTiming, Sample
from gpumagic.results.conditions import Conditions
from gpumagic.timing import host_speed
from gpumagic.timing.host_speed import HostSpeed, slowdown


def at(*seconds: float) -> Conditions:
    return Conditions(host_speed=Sample(seconds))


@pytest.mark.parametrize(
    ("now", "before", "factor"),
    [
        (at(*[2e-4] * 40), at(*[1e-4] * 40), 2.0),
        (at(*[1e-4] * 40), at(*[2e-4] * 40), 1.0),  # it has become faster
        (at(*[1e-4] * 38, 9e-4, 9e-4), at(*[1e-4] * 40), 1.0),  # outliers
        (at(*[1e-4] * 20, *[2e-4] * 20), at(*[1e-4] * 40), 2.0),  # slower at the end
        (at(*[2e-4] * 40), at(*[1e-4] * 20, *[2e-4] * 20), 2.0),  # it was faster at the beginning
        (at(2e-4), at(1e-4), 2.0),
        (at(2e-4), at(0.0), 1.0),
        (at(0.0), at(1e-4), 1.0),
        (at(2e-4), Conditions(), 1.0),  # a file of an earlier version
        (Conditions(), at(1e-4), 1.0),
        (at(2e-4), None, 1.0),
        (None, None, 1.0),
    ],
)
def test_how_many_times_as_slow_the_host_may_have_become(
    now: Conditions | None, before: Conditions | None, factor: float
) -> None:
    assert slowdown(now, before) == pytest.approx(factor)


def test_each_time_the_work_is_done_some_times(monkeypatch: pytest.MonkeyPatch) -> None:
    times = accumulate(cycle((0.0, 0.25)))
    monkeypatch.setattr(host_speed, "perf_counter", lambda: next(times))
    speed = HostSpeed(wanted=True)
    assert speed.sample is None
    speed.measure()
    first = speed.sample
    speed.measure()
    assert first is not None
    assert set(first.all) == {0.25}
    assert speed.sample == Sample(2 * first.all)


def test_a_clock_that_stands_still_gives_no_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_speed, "perf_counter", lambda: 1.0)
    speed = HostSpeed(wanted=True)
    speed.measure()
    assert speed.sample is None


@pytest.mark.parametrize("repeats", ["-n 1 -r 3", "-r 1", "--repeat --max-time 10ms", ""])
def test_it_is_measured_only_to_compare_and_never_inside_a_run(
    repeats: str, ip: Any, run_cell: Callable[..., Any], tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    order = ip.user_ns["order"] = []
    work = host_speed._call

    def call(value: float) -> float:
        if order[-1:] != ["host"]:
            order.append("host")
        return work(value)

    monkeypatch.setattr(host_speed, "_call", call)
    # Where loops are not given, a cell that takes no time would run a million times.
    ip.user_ns["sleep"] = time.sleep
    cell = "order.append('begin'); sleep(1e-3); order.append('end')"
    run_cell(f"%%cudatime -q {repeats} -v plain\n{cell}")
    assert "host" not in order
    assert ip.user_ns["plain"].conditions.host_speed is None
    for options in ("--save step.json", "--against step.json"):
        order.clear()
        run_cell(f"%%cudatime -q {repeats} {options} -v timing\n{cell}")
        timing = ip.user_ns["timing"]
        assert timing.conditions.host_speed.best > 0
        assert order.count("host") == 2
        begin, end = (place for place, each in enumerate(order) if each == "host")
        between = order[begin + 1 : end]
        assert between == ["begin", "end"] * (len(between) // 2)
        assert len(between) // 2 >= timing.repeat * timing.loops
    stored = gpumagic.load("step.json")
    assert isinstance(stored, CudaTiming)
    assert stored.conditions is not None
    assert stored.conditions.host_speed is not None
