"""A start of CUDA that failed."""

from __future__ import annotations

import os
from collections.abc import Callable
from unittest.mock import Mock

import pytest
import torch  # noqa: F401 - a suspicion is of a torch that is loaded

from gpumagic.cuda import init_failure, nvml_check, probe
from gpumagic.cuda.pytorch import torch_cuda
from gpumagic.cuda.this_process import STATE, InitFailure
from gpumagic.cuda.visible_devices import MASK
from gpumagic.results.devices import Device, DeviceTable
from tests.support.kernels import Kernel

VISIBLE = DeviceTable((Device(0, uuid="GPU-aa", visible=True),), cuda_initialized=False)
INITIALIZED = DeviceTable((Device(0, uuid="GPU-aa", visible=True),), cuda_initialized=True)


@pytest.fixture(autouse=True)
def copy(monkeypatch: pytest.MonkeyPatch) -> Mock:
    """The forked copy that is queried, in a process in which nothing is known yet."""
    monkeypatch.setattr(STATE, "init_failure", InitFailure())
    monkeypatch.delenv(MASK, raising=False)
    fake = Mock(return_value=probe.Start(count=1))
    monkeypatch.setattr(probe, "in_fork", fake)
    return fake


def test_nothing_is_queried_without_a_suspicion_or_where_it_could_not_show(
    copy: Mock, monkeypatch: pytest.MonkeyPatch
) -> None:
    init_failure.note_mask({MASK: "0"})
    with monkeypatch.context() as patch:
        patch.setattr(torch_cuda, "loaded", lambda: None)
        init_failure.note_mask({MASK: "-1"})  # torch cannot have read it
    assert not init_failure.has_failed(VISIBLE)
    init_failure.suspect()
    assert not init_failure.has_failed(INITIALIZED)
    assert copy.call_count == 0
    assert init_failure.is_suspected(VISIBLE)


@pytest.mark.parametrize("failed", [True, False])
def test_a_suspicion_is_tried_once(
    copy: Mock, monkeypatch: pytest.MonkeyPatch, failed: bool
) -> None:
    copy.return_value = probe.Start(count=0 if failed else 1)
    monkeypatch.setattr(STATE, "nvml_check_set", True)
    monkeypatch.setenv(nvml_check.VARIABLE, "1")
    init_failure.suspect()
    init_failure.note_mask({MASK: "-1"})
    for _ in range(2):
        assert init_failure.has_failed(VISIBLE) is failed
    assert (copy.call_count, init_failure.is_suspected(VISIBLE)) == (1, failed)
    # NVML would say that there is a GPU.
    assert (nvml_check.VARIABLE in os.environ) is not failed


def test_what_was_hidden_before_gpumagic_was_loaded(kernel: Callable[..., Kernel]) -> None:
    """Loading notes it, and starts no NVML for that."""
    late = kernel(load=False, env={MASK: "9"})
    late.run("import os, torch; assert not torch.cuda.is_available()")
    late.run("del os.environ['CUDA_VISIBLE_DEVICES']\n%load_ext gpumagic")
    assert late.value("'gpumagic.cuda.nvml' in __import__('sys').modules") is False
    assert "Too late for 'on': CUDA failed to start while all GPUs" in late.run("%gpu on").shown
