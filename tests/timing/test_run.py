"""What a run says of CPU time, and of devices that are not CUDA's."""

from __future__ import annotations

from time import process_time
from typing import Any

import pytest

from gpumagic.cuda import torch_cuda
from gpumagic.timing.run import (
    Run,
    Stopwatch,
    summarize,
)


def test_cpu_time_that_was_used_is_counted() -> None:
    """And what reading the clocks and the events take is not."""
    watch = Stopwatch()
    for used in (0.0, 20e-6, 2e-3):
        watch.start()
        until = process_time() + used
        while process_time() < until:
            pass
        assert 0.99 * used <= watch.stop().cpu < used + 0.1


def test_a_device_that_is_not_cudas_is_not_waited_for_and_that_is_said(
    gpu_work: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = gpu_work.torch
    monkeypatch.setattr(torch_cuda, "built_with_cuda", lambda: False)
    says = "no GPU time: this torch is built without CUDA"
    for available, more in ((False, ""), (True, "; the wall time does not wait for mps")):
        monkeypatch.setattr(torch.mps, "is_available", lambda found=available: found)
        found = summarize([Run(wall=1.0, host=1.0, cpu=0.0, readings={})])
        assert (found.gpu, found.gpu_note) == (None, says + more)
