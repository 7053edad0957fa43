"""The L2 cache emptied, throttled clocks."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from gpumagic.errors import DeviceError
from gpumagic.timing import conditions
from gpumagic.timing.conditions import Clocks, Flush


def test_a_flush_takes_memory_until_it_is_released(gpu_work: Any) -> None:
    cuda = gpu_work.torch.cuda
    free, _ = cuda.mem_get_info(0)
    flush = Flush()
    flush()
    flush()  # into the same buffers
    assert flush.sizes[0] == 50 * 2**20
    assert {0, 1} <= {*flush.sizes}
    assert cuda.mem_get_info(0)[0] == free - 2 * flush.sizes[0]
    flush.release()
    assert cuda.mem_get_info(0)[0] == free
    assert flush.sizes[0] == 50 * 2**20


def test_the_memory_of_a_flush_is_in_no_figure_of_torchs(gpu_work: Any) -> None:
    torch = gpu_work.torch
    base: Any = torch.utils._python_dispatch.TorchDispatchMode
    seen: list[Any] = []

    class Seeing(base):  # type: ignore[misc]
        def __torch_dispatch__(
            self, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            seen.append(function)
            return function(*args, **(kwargs or {}))

    figures = (
        torch.cuda.max_memory_allocated,
        torch.cuda.max_memory_reserved,
        torch.cuda.memory_reserved,
    )
    before = [figure(0) for figure in figures]
    device = torch.cuda.current_device()
    flush = Flush()
    with Seeing():
        flush()
        flush.release()
    assert seen == []
    assert [figure(0) for figure in figures] == before
    assert torch.cuda.current_device() == device


def test_no_memory_for_a_flush_is_one_line(gpu_work: Any, virtual_gpu: Any) -> None:
    flush = Flush()
    flush()
    virtual_gpu.fault("cuMemAlloc_v2", 2)
    no_memory = r"^the L2 cache cannot be emptied: no memory on cuda:0 for 104,857,600 bytes; torch"
    with pytest.raises(DeviceError, match=no_memory):
        Flush()()
    virtual_gpu.fault("cuMemsetD8Async", 700)
    with pytest.raises(DeviceError, match=r"^cuda:0: CUDA error 700$"):
        flush()
    virtual_gpu.fault("cuDevicePrimaryCtxRetain", 700)
    flush.release()  # raises nothing: it is called while the user's exception passes


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
