"""``%gpu doctor`` in real shells."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from gpumagic.doctor.diagnosis import Diagnosis
from tests.support.kernels import Kernel
from tests.support.shells import Ran


def test_doctor_is_shown_and_returned(
    run_cell: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch  # noqa: F401, so that no child process need be asked

    # torch 2.6 sets it when it initializes CUDA, as another test may have done here.
    monkeypatch.delenv("CUDA_MODULE_LOADING", raising=False)
    shown = run_cell("%gpu doctor")
    assert shown.text.startswith("torch can use 4 GPUs here.\n✓ ")
    assert re.search(r"✓ \d+ checks passed$", shown.text)
    assert "#2e9e44" in shown.html
    assert shown.value is None
    quiet = run_cell("%gpu doctor -o -q -v report")
    assert isinstance(quiet.value, Diagnosis)
    assert quiet.text == ""
    assert run_cell("report").value is quiet.value
    assert run_cell("%gpu doctor;").text == ""


def test_variables_written_before_and_after_the_start_are_told_apart(
    kernel: Callable[..., Kernel], monkeypatch: pytest.MonkeyPatch
) -> None:
    # torch 2.6 has set it here, if it has been initialised in this process.
    monkeypatch.delenv("CUDA_MODULE_LOADING", raising=False)
    fresh_kernel = kernel()
    fresh_kernel.run("import os\nos.environ['CUDA_MODULE_LOADING'] = 'EAGER'")
    fresh_kernel.run("import torch\ntorch.cuda.init()")
    fresh_kernel.run("report = %gpu doctor -o -q")
    status = "getattr(report.about('variables'), 'status', None)"
    assert fresh_kernel.value(status) is None
    fresh_kernel.run("os.environ['CUDA_MODULE_LOADING'] = 'LAZY'\nreport = %gpu doctor -o -q")
    assert fresh_kernel.value(status) == "warn"
