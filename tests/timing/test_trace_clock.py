"""The profiler's clock beside the host's, from ranges in a trace."""

from __future__ import annotations

from typing import Any

import pytest

from gpumagic.cuda import torch_cuda
from gpumagic.timing import trace_clock
from gpumagic.timing.trace_clock import MARK, TraceClock
from tests.support.traces import event


class Profiler:
    """A host's clock, and a profiler whose own goes otherwise: both in seconds."""

    def __init__(self, slow: dict[int, float] | None = None, drift: float = 0.0) -> None:
        self.now = 1000.0
        self.drift = drift
        #: Seconds that the host is held up in the range of that number.
        self.slow = slow or {}
        self.trace: list[dict[str, Any]] = []

    def perf_counter(self) -> float:
        return self.now

    def time(self, now: float) -> float:
        return (now - 970.0) * (1 + self.drift) * 1e6

    def annotation(self, name: str) -> Profiler:
        self.now += self.slow.get(len(self.trace), 0.0) + 1e-6
        self.trace.append(event("user_annotation", name, self.time(self.now), 1.0))
        self.now += 1e-6
        return self

    def __enter__(self) -> None:
        return None

    def __exit__(self, *_: object) -> None:
        self.now += 1e-6


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> Any:
    def record(profiler: Profiler, seconds: float) -> TraceClock:
        monkeypatch.setattr(trace_clock, "perf_counter", profiler.perf_counter)
        monkeypatch.setattr(torch_cuda, "annotation", profiler.annotation)
        with TraceClock() as clock:
            profiler.now += seconds
        return clock

    return record


@pytest.mark.parametrize("seconds", [1e-3, 1.0, 100.0])
@pytest.mark.parametrize("drift", [0.0, 1e-5])
def test_times_of_the_host(recorded: Any, seconds: float, drift: float) -> None:
    """Also where nine of ten ranges were held up by a busy machine, at either end."""
    held_up = {each: 0.01 * (each + 1) for each in (0, 1, 2, 4, 6, 7, 8, 9)}
    profiler = Profiler(held_up, drift)
    begun = profiler.now
    clock = recorded(profiler, seconds)
    host_time = clock.host_time(profiler.trace[::-1])
    assert host_time is not None
    for part in (0.1, 0.5, 0.9):
        now = begun + 0.1 + part * seconds
        assert host_time(profiler.time(now)) == pytest.approx(now, abs=2e-6 + 0.2 * drift)


def test_other_events_of_that_name_are_none() -> None:
    """The profiler shows a range again on the GPU if it has launched something."""
    clock = TraceClock()
    assert clock.host_time([]) is None
    assert clock.host_time([event("gpu_user_annotation", MARK, 1, 1)] * 10) is None


def test_clocks_that_do_not_go_alike(recorded: Any) -> None:
    profiler = Profiler(drift=0.01)
    clock = recorded(profiler, 1.0)
    assert clock.host_time(profiler.trace) is None


def test_ranges_that_were_lost(recorded: Any) -> None:
    profiler = Profiler()
    clock = recorded(profiler, 1.0)
    assert clock.host_time(profiler.trace[1:]) is None
