"""torch's build and its CUDA runtime, in a child, a fork or this process."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
import torch

from gpumagic.cuda import probe, torch_cuda
from gpumagic.system import child_process


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (None, None),
        (
            "CUDA initialization: Unexpected error from cudaGetDeviceCount(). Did you run some "
            "cuda functions before calling NumCudaDevices() that might have already set an error? "
            "Error 803: system has unsupported display driver / cuda driver combination",
            "Error 803: system has unsupported display driver / cuda driver combination",
        ),
        (
            "CUDA initialization: CUDA unknown error - this may be due to an incorrectly set up "
            "environment, e.g. changing env variable CUDA_VISIBLE_DEVICES after program start.",
            "CUDA unknown error",
        ),
        (
            "CUDA initialization: Found no NVIDIA driver on your system. Please check that you "
            "have an NVIDIA GPU",
            "Found no NVIDIA driver on your system",
        ),
        ("a copy of this process returned nothing", "a copy of this process returned nothing"),
    ],
)
def test_torchs_general_advice_is_left_out(message: str | None, reason: str | None) -> None:
    assert probe.Start(message=message).reason == reason


def test_the_build_of_this_process() -> None:
    build = probe.build_here()
    assert build is not None
    assert (build.version, build.cuda) == (torch.__version__, torch.version.cuda)
    assert build.compiled is torch_cuda.built_with_cuda()
    assert all(each.startswith(("sm_", "compute_")) for each in build.architectures)


def test_a_fork_starts_cuda_without_a_change_here() -> None:
    initialized = torch.cuda.is_initialized()
    start = probe.in_fork()
    assert start.count is not None or start.message is not None
    assert torch.cuda.is_initialized() is initialized


def test_without_torch_nothing_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_cuda, "loaded", lambda: None)
    assert probe.build_here() is None
    assert probe.in_fork() == probe.start_here() == probe.Start()


@pytest.mark.parametrize(
    ("output", "error", "message"),
    [
        ("", "the process that imported it ended with status 3", None),
        ('noise\n{"error": "torch is not installed"}\n', "torch is not installed", None),
        ('{"version": "2", "compiled": false}\n', None, None),
        (
            '{"version": "2", "compiled": true}\n',
            None,
            "the process that started CUDA ended with status 3",
        ),
        ('{"compiled": true}\n{"count": 2, "message": null}\n', None, None),
    ],
)
def test_what_a_child_printed(
    monkeypatch: pytest.MonkeyPatch, output: str, error: str | None, message: str | None
) -> None:
    """A child may end at any point, after a part of its output."""
    done: Any = subprocess.CompletedProcess([], 3, output, "")
    monkeypatch.setattr(child_process, "python", lambda *arguments, **options: done)
    build, start = probe.in_child({})
    assert (build.error, start.message) == (error, message)
    assert start.count == (2 if '"count"' in output else None)


def test_the_program_says_why_torch_cannot_be_imported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    probe.main()
    (printed,) = map(json.loads, capsys.readouterr().out.split("\n\n"))
    assert "torch" in printed["error"]
