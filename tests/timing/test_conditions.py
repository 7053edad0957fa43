"""The L2 cache emptied, throttled clocks."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from gpumagic.errors import DeviceError
from gpumagic.timing import conditions
from gpumagic.timing.conditions import Clocks, Flush


def test_a_flush_takes_memory_until_it_is_released(gpu_work: Any) -> None:
    before = gpu_work.torch.cuda.memory_allocated(0)
    flush = Flush()
    flush()
    flush()  # into the same buffers
    assert flush.sizes[0] == 50 * 2**20
    assert {0, 1} <= {*flush.sizes}
    assert gpu_work.torch.cuda.memory_allocated(0) == before + 2 * flush.sizes[0]
    flush.release()
    assert gpu_work.torch.cuda.memory_allocated(0) == before
    assert flush.sizes[0] == 50 * 2**20


def test_a_cache_of_unknown_size_is_refused(gpu_work: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        gpu_work.torch.cuda, "get_device_properties", lambda ordinal: SimpleNamespace()
    )
    with pytest.raises(DeviceError, match="cuda:0 does not report the size of its L2 cache"):
        Flush()()


def test_throttled_clocks_are_asked_for_at_intervals(
    gpu_work: Any, virtual_gpu: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = iter([10.0, 10.0, 10.01, 10.02, 10.02])
    monkeypatch.setattr(conditions, "perf_counter", lambda: next(times))
    clocks = Clocks()
    clocks.query([0])
    assert clocks.reasons == {}
    virtual_gpu.set_gpu(0, throttle_reasons=0x04)
    clocks.query([0])  # too soon after the last time
    assert clocks.reasons == {}
    clocks.query([0], at_once=True)
    assert clocks.reasons == {0: ("power limit",)}
