"""A context that an error has destroyed, distinguished from errors that leave it intact."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from gpumagic.cuda import failure
from gpumagic.cuda.process_state import STATE


@pytest.fixture(autouse=True)
def _nothing_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(STATE, "dead_context", None)


@pytest.fixture
def cuda_tensor(virtual_gpu: Any) -> Any:
    """A tensor, so that this process has a context."""
    return torch.ones(3, device="cuda")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("CUDA error: device-side assert triggered\nCompile with…", True),
        ("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm`", True),
        ("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED", True),
        ("CUDA driver error: unknown error", True),
        ("Triton Error [CUDA]: an illegal memory access was encountered", True),
        ("cudaErrorIllegalAddress: an illegal memory access was encountered", True),
        ("name 'torch' is not defined", False),
        ("CUDA out of memory. Tried to allocate 2.00 GiB", False),
    ],
)
def test_an_error_of_cuda_is_known_by_its_text(text: str, expected: bool) -> None:
    assert failure.is_cuda_error(text) is expected


@pytest.mark.own_process
@pytest.mark.parametrize(
    ("code", "cause"),
    [
        (710, "an assertion in a kernel failed, mostly an index out of range"),
        (700, "a kernel accessed an illegal address"),
        (719, "a kernel failed on the device"),
        (999, "the device does not respond: it may be lost"),
    ],
)
def test_a_dead_context_is_known_by_its_error(
    virtual_gpu: Any, cuda_tensor: Any, code: int, cause: str
) -> None:
    assert failure.check_context() is None
    virtual_gpu.end_context(code)
    assert failure.dead_context() is None  # not queried yet
    assert failure.check_context() == failure.dead_context() == cause
    virtual_gpu.reset()
    assert failure.check_context() == cause  # for as long as the process lasts
    assert not virtual_gpu.calls("cudaMemGetInfo")  # and without asking again


def test_a_lost_device_is_one(virtual_gpu: Any, cuda_tensor: Any) -> None:
    virtual_gpu.lose(0)
    assert failure.check_context() == "the device does not respond: it may be lost"


@pytest.mark.parametrize("code", [2, 900], ids=["out of memory", "a capture under way"])
def test_other_errors_leave_it_intact(virtual_gpu: Any, cuda_tensor: Any, code: int) -> None:
    virtual_gpu.fault("cudaMemGetInfo", code)
    assert failure.check_context() is None


def test_without_a_context_nothing_is_queried(
    virtual_gpu: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failure.torch_cuda, "contexts", lambda: ())
    assert failure.check_context() is None
    assert not virtual_gpu.calls("cudaMemGetInfo")
