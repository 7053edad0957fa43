"""Parking after an idle time, by an event loop of the test's own."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from gpumagic.memory.idle_parking import IdleParking, debugger_attached
from gpumagic.memory.parking import PARKING
from gpumagic.memory.unpark_on_use import MODES
from tests.support.parking import needs_parking

pytestmark = needs_parking


class Loop:
    """Timers that end when the test says so."""

    def __init__(self) -> None:
        self.timers: list[tuple[float, Callable[[], None]]] = []

    def call_later(self, seconds: float, function: Callable[[], None]) -> Any:
        self.timers.append((seconds, function))
        return self.timers[-1]

    def cancel(self, timer: Any) -> None:
        self.timers = [each for each in self.timers if each is not timer]

    def time_passes(self) -> None:
        ((_, function),) = self.timers
        self.timers.clear()
        function()


@pytest.fixture
def loop() -> Loop:
    return Loop()


@pytest.fixture
def idle(torch: Any, loop: Loop) -> Iterator[IdleParking]:
    made = IdleParking(None, loop.call_later, loop.cancel)
    yield made
    made.off()
    assert loop.timers == []
    PARKING.bring_back()
    MODES.leave()


def test_parks_when_nothing_has_run(torch: Any, idle: IdleParking, loop: Loop) -> None:
    tensor = torch.arange(1000).cuda()
    idle.on(900)
    assert [seconds for seconds, _ in loop.timers] == [900]
    loop.time_passes()
    assert PARKING.active
    assert torch.cuda.memory_reserved() == 0
    assert int(tensor.cpu()[999]) == 999  # without a cell
    assert not PARKING.active
    loop.time_passes()
    assert PARKING.active


def test_a_cell_restarts_the_time(torch: Any, idle: IdleParking, loop: Loop) -> None:
    tensor = torch.ones(1000).cuda()
    idle.begin_activity()
    idle.on(900)
    assert loop.timers == []
    idle.begin_activity()  # the cell awaits, and a widget calls back
    idle.end_activity()
    assert loop.timers == []
    idle.end_activity()
    assert len(loop.timers) == 1
    idle.begin_activity()
    assert loop.timers == []
    idle.end_activity(all_of_it=True)
    loop.time_passes()
    assert PARKING.active
    del tensor


def test_not_while_a_debugger_is_attached(
    torch: Any, idle: IdleParking, loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensor = torch.ones(1000).cuda()
    idle.on(900)
    with monkeypatch.context() as patch:
        patch.setattr(sys, "gettrace", lambda: print)
        assert debugger_attached(None)
        loop.time_passes()
    assert not PARKING.active
    loop.time_passes()
    assert PARKING.active
    del tensor


@pytest.mark.parametrize("connected", [True, False])
def test_what_debugpy_leaves_behind_is_no_debugger(
    monkeypatch: pytest.MonkeyPatch, connected: bool
) -> None:
    def traces(*_: Any) -> None: ...

    traces.__module__ = "_pydevd_bundle.pydevd_trace_dispatch_regular"
    debugpy = SimpleNamespace(is_client_connected=lambda: connected)
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "debugpy", debugpy)
        patch.setattr(sys, "gettrace", lambda: traces)
        found = debugger_attached(None)
    assert found is connected


def test_a_refusal_is_tried_again(torch: Any, idle: IdleParking, loop: Loop) -> None:
    tensor = torch.ones(1000).cuda()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        tensor.add_(1)
    idle.on(900)
    loop.time_passes()
    assert not PARKING.active
    assert "CUDA graph" in str(idle.refusal)
    del graph
    loop.time_passes()
    assert PARKING.active
    assert idle.refusal is None
    del tensor
