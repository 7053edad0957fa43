"""A start of CUDA that failed, a context that an error has destroyed, and why there is no GPU."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
import torch

from gpumagic.cuda import driver, failure, initialization, probe, torch_cuda
from gpumagic.cuda.driver import DriverState
from gpumagic.cuda.this_process import STATE, InitFailure
from gpumagic.cuda.visible_devices import MASK
from gpumagic.results.devices import Device, DeviceTable
from gpumagic.selection import cuda_errors
from tests.support.kernels import Kernel

VISIBLE = DeviceTable((Device(0, uuid="GPU-aa", visible=True),), cuda_initialized=False)
HIDDEN = DeviceTable((Device(0, uuid="GPU-aa", visible=False),), cuda_initialized=False)
INITIALIZED = DeviceTable((Device(0, uuid="GPU-aa", visible=True),), cuda_initialized=True)


class Copy:
    """A forked copy of the process, which returns the ``answer`` of a test."""

    def __init__(self) -> None:
        self.answer, self.queries = probe.Start(count=1), 0

    def __call__(self, *, shown: bool = False) -> probe.Start:
        self.queries += 1
        return self.answer


@pytest.fixture(autouse=True)
def copy(monkeypatch: pytest.MonkeyPatch) -> Copy:
    """The copy that is queried, in a process in which nothing is known yet."""
    monkeypatch.setattr(STATE, "init_failure", InitFailure())
    monkeypatch.setattr(STATE, "dead_context", None)
    monkeypatch.delenv(MASK, raising=False)
    fake = Copy()
    monkeypatch.setattr(probe, "in_fork", fake)
    return fake


# --- a failed start: queried once, and only if it is likely --------------------------------------


def test_nothing_is_queried_without_a_suspicion_or_where_it_could_not_show(copy: Copy) -> None:
    assert not failure.has_failed(VISIBLE)
    failure.suspect(hidden=True)
    assert not failure.has_failed(INITIALIZED)
    assert copy.queries == 0
    assert failure.suspected(VISIBLE)


@pytest.mark.parametrize("failed", [True, False])
def test_a_suspicion_is_tried_once(
    copy: Copy, monkeypatch: pytest.MonkeyPatch, failed: bool
) -> None:
    copy.answer = probe.Start(count=0 if failed else 1)
    monkeypatch.setattr(STATE, "nvml_check_set", True)
    monkeypatch.setenv(initialization.NVML_CHECK, "1")
    failure.suspect(hidden=True)
    for _ in range(2):
        assert failure.has_failed(VISIBLE) is failed
    assert (copy.queries, failure.suspected(VISIBLE)) == (1, failed)
    # NVML would say that there is a GPU.
    assert (initialization.NVML_CHECK in os.environ) is not failed


@pytest.mark.parametrize(
    ("hidden", "message", "text"),
    [
        (True, None, "CUDA failed to start while all GPUs were hidden"),
        (True, "CUDA initialization: Error 803: no", "CUDA has failed to start (Error 803: no)"),
        (False, None, "CUDA has failed to start, and does not start again in this process"),
    ],
)
def test_the_cause(copy: Copy, hidden: bool, message: str | None, text: str) -> None:
    copy.answer = probe.Start(count=0, message=message)
    failure.suspect(hidden=hidden)
    failure.has_failed(VISIBLE)
    assert cuda_errors.start_cause().startswith(text)


@pytest.mark.parametrize(
    ("mask", "suspected"), [(None, False), ("0", False), ("-1", True), ("", True)]
)
def test_hiding_all_devices_from_torch_is_a_suspicion(
    monkeypatch: pytest.MonkeyPatch, mask: str | None, suspected: bool
) -> None:
    failure.note_mask({MASK: mask})
    assert failure.suspected(VISIBLE) is suspected
    STATE.init_failure = InitFailure()
    monkeypatch.setattr(torch_cuda, "loaded", lambda: None)
    failure.note_mask({MASK: mask})
    assert not failure.suspected(VISIBLE)


def test_what_was_hidden_before_gpumagic_was_loaded(kernel: Callable[..., Kernel]) -> None:
    """Loading notes it, and starts no NVML for that."""
    late = kernel(load=False, env={MASK: "9"})
    late.run("import os, torch; assert not torch.cuda.is_available()")
    late.run("del os.environ['CUDA_VISIBLE_DEVICES']\n%load_ext gpumagic")
    assert late.value("'gpumagic.cuda.nvml' in __import__('sys').modules") is False
    assert "Too late for 'on': CUDA failed to start while all GPUs" in late.run("%gpu on").shown


# --- a dead context ------------------------------------------------------------------------------


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
    assert failure.is_cuda_error(text) is expected


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
    assert failure.check_context() is None
    virtual_gpu.end_context(code)
    assert STATE.dead_context is None  # not queried yet
    assert failure.check_context() == STATE.dead_context == cause
    virtual_gpu.reset()
    assert failure.check_context() == cause  # for as long as the process lasts
    assert not virtual_gpu.calls("cudaMemGetInfo")  # and without asking again


@pytest.mark.parametrize("code", [2, 900], ids=["out of memory", "a capture under way"])
def test_other_errors_leave_it_intact(virtual_gpu: Any, code: int) -> None:
    torch.ones(3, device="cuda")
    virtual_gpu.fault("cudaMemGetInfo", code)
    assert failure.check_context() is None


# --- no GPU --------------------------------------------------------------------------------------


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
        ({}, failure.NOT_IN_USE),
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
    monkeypatch.setattr(failure, "_machine_has_none", lambda: missing.get("none", False))
    if "mask" in missing:
        monkeypatch.setenv(MASK, missing["mask"])
    assert failure.why_no_gpu() == reason
    certain = {"there is no NVIDIA driver", "this machine has no GPU"}
    assert failure.has_no_gpu() == (reason in certain)
