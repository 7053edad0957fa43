"""``%%gpumem --save`` and ``--against``: a notebook that guards its peaks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from IPython.core.error import UsageError

import gpumagic
from gpumagic.cuda import machine
from gpumagic.results.memory import DeviceMemoryDelta, MemoryDelta
from tests.support.shells import Ran

Run = Callable[..., Ran]


@pytest.fixture
def measured(ip: Any, run_cell: Run, virtual_gpu: Any, tmp_path: Path, monkeypatch: Any) -> Run:
    """``measured(options, mebibytes)``: a cell of known peak, in a folder of its own."""
    import torch

    monkeypatch.chdir(tmp_path)
    torch.empty(1, device="cuda:0")
    ip.user_ns["torch"] = torch

    def run(options: str, mebibytes: int, **more: Any) -> Ran:
        code = f"torch.empty({mebibytes} * 2**20, dtype=torch.int8, device='cuda:0')"
        return run_cell(f"%%gpumem {options}\ndel_me = {code}; del del_me", **more)

    return run


def test_a_higher_peak_fails(measured: Run) -> None:
    measured("--save peak.json", 40)
    stored = gpumagic.load("peak.json")
    assert isinstance(stored, MemoryDelta)
    assert stored.devices[0].peak == 40 * 2**20
    assert stored.conditions is not None
    assert " 0.0 %" in measured("--against peak.json --fail-above 0", 40).text
    assert measured("--against peak.json --fail-above 10%", 44).error is None
    failed = measured("--against peak.json --fail-above 10%", 46, raising=False)
    assert type(failed.error) is gpumagic.RegressionError
    assert str(failed.error) == (
        "cuda:0: peak 48,234,496 B, stored 41,943,040 B; allowed: 10 % more"
    )


def test_a_device_of_another_kind_that_the_cell_does_not_use_changes_nothing(
    measured: Run, run_cell: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "_name", {0: "NVIDIA H100", 1: "NVIDIA T4"}.__getitem__)
    measured("--save peak.json", 40)
    run_cell("torch.ones(1, device='cuda:1')")
    failed = measured("--against peak.json --fail-above 10%", 120, raising=False)
    assert type(failed.error) is gpumagic.RegressionError
    assert "T4" not in failed.text
    assert "cuda:1" not in failed.text
    run_cell("%%gpumem --save both.json\nx = [torch.ones(9, device=f'cuda:{i}') for i in (0, 1)]")
    stored = gpumagic.load("both.json").conditions
    assert stored is not None
    assert stored.devices == {0: "NVIDIA H100", 1: "NVIDIA T4"}


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("--against nothing.json", "cannot read nothing.json"),
        ("--against partial.json", "code that did not run to its end"),
        ("--against partial.json --fail-above 0.1", "0.1 is 0.1 %"),
        ("--save protected.json", "the file is read-only"),
    ],
)
def test_bad_input_runs_nothing(measured: Run, ip: Any, options: str, says: str) -> None:
    ip.user_ns["torch"] = None
    partial = MemoryDelta({0: DeviceMemoryDelta(0, 0, 1)}, partial=True)
    partial.save("partial.json")
    partial.save("protected.json").chmod(0o444)
    with pytest.raises(UsageError, match=says):
        measured(options, 1)
