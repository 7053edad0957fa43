"""GPUs that are not CUDA's: the two ways of timing, tried on the virtual GPU."""

from __future__ import annotations

import inspect
from types import SimpleNamespace
from typing import Any

import pytest

from gpumagic.timing import event_timer, run


@pytest.mark.parametrize("kind", ["mps", "xpu"])
def test_torch_has_what_is_used(kind: str) -> None:
    import torch

    module = getattr(torch, kind)
    assert callable(module.synchronize)
    assert {"record", "elapsed_time"} <= {*dir(module.Event)}
    maker = module.Event if kind == "mps" else module.Event.__new__
    assert "enable_timing" in inspect.signature(maker).parameters


def test_torch_with_cuda_has_no_other(gpu_work: Any) -> None:
    assert event_timer.other_kind() is None


@pytest.mark.parametrize("events", [True, False])
def test_a_device_of_another_kind(
    gpu_work: Any, events: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CUDA's own events and synchronise, under another device's name."""
    cuda = gpu_work.torch.cuda
    module = SimpleNamespace(synchronize=cuda.synchronize)
    if events:
        module.Event = cuda.Event
    monkeypatch.setattr(gpu_work.torch, "npu", module, raising=False)
    monkeypatch.setattr(event_timer, "other_kind", lambda: "npu")
    watch = run.Stopwatch()
    runs = []
    for _ in range(3):
        watch.start()
        gpu_work.sleep(0.02)
        runs.append(watch.stop())
    timing = run.summarize(runs)
    assert timing.backend == "npu"
    assert 0.98 * 0.02 <= timing.gpu.best <= timing.wall.best
    assert timing.host.best < 0.01, "the wait is not the code's own"
    says = "npu: from events on the current stream"
    assert timing.gpu_note == (says if events else f"{event_timer.EventPair('npu').remark}")
    assert "npu" in str(run.summarize(runs[:1]))


def test_a_device_that_cannot_be_waited_for(gpu_work: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise RuntimeError("gone\nwith details")

    module = SimpleNamespace(synchronize=fail)
    monkeypatch.setattr(gpu_work.torch, "npu", module, raising=False)
    monkeypatch.setattr(event_timer, "other_kind", lambda: "npu")
    watch = run.Stopwatch()
    watch.start()
    timing = run.summarize([watch.stop()])
    assert timing.gpu is None
    assert timing.gpu_note == "no GPU time: npu cannot be waited for (gone)"
