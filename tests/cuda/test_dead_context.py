"""A context that an error has destroyed."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from gpumagic.cuda import dead_context
from gpumagic.cuda.this_process import STATE


@pytest.fixture(autouse=True)
def nothing_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(STATE, "dead_context", None)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("CUDA error: device-side assert triggered\nCompile with…", True),
        ("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED", True),
        ("CUDA driver error: unknown error", True),
        ("Triton Error [CUDA]: an illegal memory access was encountered", True),
        ("cudaErrorIllegalAddress: an illegal memory access was encountered", True),
        ("name 'torch' is not defined", False),
        ("CUDA out of memory. Tried to allocate 2.00 GiB", False),
    ],
)
def test_an_error_of_cuda_is_known_by_its_text(text: str, expected: bool) -> None:
    assert dead_context.is_cuda_error(text) is expected


@pytest.mark.own_process
@pytest.mark.parametrize(
    ("code", "cause"),
    [
        (710, "an assertion in a GPU kernel failed, mostly an index out of range"),
        (999, "the driver reports an unknown error"),
    ],
)
def test_a_dead_context_is_known_by_its_error(virtual_gpu: Any, code: int, cause: str) -> None:
    torch.ones(3, device="cuda")
    assert dead_context.check() is None
    virtual_gpu.end_context(code)
    assert STATE.dead_context is None  # not queried yet
    said = f"CUDA has failed in this process ({cause})"
    assert dead_context.check() == STATE.dead_context == said
    virtual_gpu.reset()
    assert dead_context.check() == said  # for as long as the process lasts
    assert not virtual_gpu.calls("cudaMemGetInfo")  # and without asking again


@pytest.mark.parametrize("code", [2, 900], ids=["out of memory", "a capture under way"])
def test_other_errors_leave_it_intact(virtual_gpu: Any, code: int) -> None:
    torch.ones(3, device="cuda")
    virtual_gpu.fault("cudaMemGetInfo", code)
    assert dead_context.check() is None
