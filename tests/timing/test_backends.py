"""GPUs that are not CUDA's: the table, and its two ways of timing, tried on the virtual GPU."""

from __future__ import annotations

import inspect
import time
from typing import Any

import pytest

from gpumagic.timing import backends, run


@pytest.mark.parametrize("kind", [kind for kind, row in backends.TABLE.items() if row[1]])
def test_torch_has_the_events_of_the_table(kind: str) -> None:
    import torch

    module = getattr(torch, kind)
    assert callable(module.synchronize)
    assert {"record", "query", "elapsed_time"} <= {*dir(module.Event)}
    maker = module.Event if kind == "mps" else module.Event.__new__
    assert "enable_timing" in inspect.signature(maker).parameters


def test_torch_with_cuda_has_no_other(gpu_work: Any) -> None:
    assert backends.active() is None
    assert backends.label() == "NVIDIA CUDA"


@pytest.mark.parametrize("events", [True, False])
def test_a_device_of_another_kind(
    gpu_work: Any, events: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CUDA's own events and synchronise, under another device's name."""
    cuda = gpu_work.torch.cuda
    event = (lambda: cuda.Event(enable_timing=True)) if events else None
    other = backends.Backend("npu", "Example NPU", cuda.synchronize, event)
    monkeypatch.setattr(backends, "active", lambda: other)
    watch = run.Stopwatch()
    runs = []
    for _ in range(3):
        watch.start()
        gpu_work.sleep(0.02)
        runs.append(watch.stop())
    timing = run.summarize(runs)
    assert timing.backend == "npu"
    assert timing.gpu.best >= 0.98 * 0.02
    assert timing.gpu.best <= timing.wall.best
    assert timing.host.best < 0.01, "the wait is not the code's own"
    assert "npu" in str(run.summarize(runs[:1]))
    if events:
        assert timing.gpu_note == "Example NPU: from events on the current stream"
    else:
        assert "wall time until the device was idle, not GPU time" in timing.gpu_note


def test_a_device_that_cannot_be_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise RuntimeError("gone\nwith details")

    other = backends.Backend("npu", "Example NPU", fail, None)
    monkeypatch.setattr(backends, "active", lambda: other)
    watch = run.Stopwatch()
    watch.start()
    time.sleep(0.001)
    timing = run.summarize([watch.stop()])
    assert timing.gpu is None
    assert timing.gpu_note == "no GPU time: Example NPU cannot be waited for (gone)"
    assert timing.wall.median >= 0.001
