"""What torch reports of its devices, without initialising CUDA."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from gpumagic.cuda.pytorch import any_device, torch_cuda
from gpumagic.errors import DeviceError


@pytest.mark.parametrize("module", [None, SimpleNamespace()], ids=["failed", "half imported"])
def test_a_torch_that_is_not_usable_is_not_loaded(
    monkeypatch: pytest.MonkeyPatch, module: Any
) -> None:
    monkeypatch.setitem(sys.modules, "torch", module)
    assert torch_cuda.loaded() is None
    assert torch_cuda.built_with_cuda() is torch_cuda.initialized() is False
    assert torch_cuda.contexts() == ()
    assert torch_cuda.current_device() is None


def test_a_torch_that_cannot_be_imported_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(DeviceError, match="install it with: pip install torch") as caught:
        any_device.device()
    assert "\n" not in str(caught.value)


def test_a_call_at_initialisation_can_be_cancelled() -> None:
    calls: list[str] = []

    def call() -> None:
        calls.append("called")

    before = len(getattr(torch.cuda, "_queued_calls", []))
    torch_cuda.when_initialized(call)
    torch_cuda.cancel(call)
    assert len(getattr(torch.cuda, "_queued_calls", [])) == before
    assert calls == ["called"] * torch.cuda.is_initialized()
