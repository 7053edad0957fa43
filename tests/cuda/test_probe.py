"""torch's build and its CUDA runtime, in a child, a fork or this process."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest

from gpumagic.cuda import probe
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


@pytest.mark.parametrize(
    ("output", "error", "message"),
    [
        ("", "the process that imported it ended with status 3", None),
        ('{"no": json\n{"error": "torch is not installed"}\n', "torch is not installed", None),
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
    marked = output.replace('{"', 'gpumagic: {"').replace('gpumagic: {"no"', '{"no"')
    done: Any = subprocess.CompletedProcess([], 3, marked, "")
    monkeypatch.setattr(child_process, "python", lambda *arguments, **options: done)
    build, start = probe.in_child({})
    assert (build.error, start.message) == (error, message)
    assert start.count == (2 if '"count"' in output else None)
