"""Parking after a time without a cell, on a clock of the test's own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from gpumagic.memory.idle_parking import IdleParking
from gpumagic.memory.parking import PARKING
from tests.support.parking import needs_parking

pytestmark = needs_parking


class Loop:
    """An event loop with one timer."""

    def __init__(self) -> None:
        self.waiting: tuple[float, Callable[[], None]] | None = None

    def call_later(self, seconds: float, call: Callable[[], None]) -> str:
        self.waiting = (seconds, call)
        return "handle"

    def cancel(self, handle: str) -> None:
        assert handle == "handle"
        self.waiting = None

    def passes(self) -> None:
        assert self.waiting is not None
        call, self.waiting = self.waiting[1], None
        call()


@pytest.fixture
def loop(torch: Any) -> Iterator[Loop]:
    yield Loop()
    PARKING.bring_back()


def test_it_parks_once_until_the_next_cell(torch: Any, loop: Loop) -> None:
    idle = IdleParking(None, loop.call_later, loop.cancel)
    tensor = torch.ones(1000).to("cuda")
    idle.restart()
    assert loop.waiting is None, "it is off"
    idle.after = 900
    idle.restart()
    assert loop.waiting is not None
    assert loop.waiting[0] == 900
    idle.stop()  # a cell begins
    assert loop.waiting is None
    idle.restart()
    loop.passes()
    assert PARKING.active
    assert loop.waiting is None
    PARKING.bring_back()
    assert float(tensor.cpu().sum()) == 1000


def test_what_refuses_is_kept_and_it_tries_again(torch: Any, loop: Loop) -> None:
    timer = threading.Timer(3600, lambda: None)
    timer.start()
    idle = IdleParking(None, loop.call_later, loop.cancel)
    idle.after = 900
    tensor = torch.ones(1000).to("cuda")
    try:
        idle.restart()
        loop.passes()
        assert not PARKING.active
        assert "may use the GPU; end it first" in str(idle.refusal)
    finally:
        timer.cancel()
        timer.join()
    loop.passes()
    assert PARKING.active
    assert idle.refusal is None
    PARKING.bring_back()
    assert float(tensor.cpu().sum()) == 1000
