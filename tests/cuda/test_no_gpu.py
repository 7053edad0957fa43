"""Why there is no GPU to measure."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from gpumagic.cuda import driver, no_gpu
from gpumagic.cuda.driver import DriverState
from gpumagic.cuda.pytorch import torch_cuda
from gpumagic.cuda.visible_devices import MASK


@pytest.mark.parametrize(
    ("missing", "reason"),
    [
        ({"loaded": None}, "torch is not imported"),
        ({"built": False}, "this torch is built without CUDA"),
        ({"initialized": True}, "no GPU has been used in this process"),
        ({"mask": ""}, "no GPU is visible: CUDA_VISIBLE_DEVICES="),
        ({"mask": " -1"}, "no GPU is visible: CUDA_VISIBLE_DEVICES=-1"),
        ({"mask": "0", "installed": False}, "there is no NVIDIA driver"),
        ({"uuids": ()}, "there is no GPU that CUDA can use"),
        (
            {"uuids": ("GPU-a",)},
            "CUDA has started in this process, but torch has used no GPU in it",
        ),
        ({"none": True}, "this machine has no GPU"),
        ({"mask": "", "installed": False}, "no GPU is visible: CUDA_VISIBLE_DEVICES="),
        ({"built": False, "none": True}, "this torch is built without CUDA"),
        ({}, no_gpu.NOT_IN_USE),
    ],
)
def test_why_there_is_no_gpu_to_measure(
    monkeypatch: pytest.MonkeyPatch, missing: dict[str, Any], reason: str
) -> None:
    """In the order in which the reasons are found."""
    uuids = missing.get("uuids")
    state = DriverState(initialized=uuids is not None, uuids=uuids)
    monkeypatch.setattr(torch_cuda, "loaded", lambda: missing.get("loaded", torch))
    monkeypatch.setattr(torch_cuda, "built_with_cuda", lambda: missing.get("built", True))
    monkeypatch.setattr(torch_cuda, "initialized", lambda: missing.get("initialized", False))
    monkeypatch.setattr(driver, "installed", lambda: missing.get("installed", True))
    monkeypatch.setattr(driver, "state", lambda: state)
    monkeypatch.setattr(no_gpu, "_nvml_lists_none", lambda: missing.get("none", False))
    monkeypatch.delenv(MASK, raising=False)
    if "mask" in missing:
        monkeypatch.setenv(MASK, missing["mask"])
    assert no_gpu.reason() == reason
    assert no_gpu.machine_has_none() == ("none" in missing or "installed" in missing)
