"""Why there is no GPU to measure, in the order in which the reasons are found."""

from __future__ import annotations

from typing import Any

import pytest

from gpumagic.cuda import driver, failure, torch_cuda
from gpumagic.cuda.driver import DriverState

#: A process with everything but CUDA initialised, and what is missing of it, with the reason.
PRESENT: dict[str, Any] = {
    "loaded": object(),
    "built": True,
    "initialized": False,
    "mask": None,
    "installed": True,
    "uuids": None,
    "counted": 4,
}


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
        ({"counted": 0}, "this machine has no GPU"),
        ({"counted": -1}, failure.NOT_IN_USE),
        ({}, failure.NOT_IN_USE),
    ],
)
def test_the_reason(monkeypatch: pytest.MonkeyPatch, missing: dict[str, Any], reason: str) -> None:
    process = {**PRESENT, **missing}
    state = DriverState(loaded=True, initialized=False, uuids=process["uuids"])
    monkeypatch.setattr(torch_cuda, "loaded", lambda: process["loaded"])
    monkeypatch.setattr(torch_cuda, "built_with_cuda", lambda: process["built"])
    monkeypatch.setattr(torch_cuda, "initialized", lambda: process["initialized"])
    monkeypatch.setattr(driver, "installed", lambda: process["installed"])
    monkeypatch.setattr(driver, "state", lambda: state)
    monkeypatch.setattr(failure, "_counted_by_nvml", lambda torch: process["counted"])
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if process["mask"] is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", process["mask"])
    assert failure.why_no_gpu() == reason
    certain = {"there is no NVIDIA driver", "this machine has no GPU"}
    assert failure.has_no_gpu() == (reason in certain)
