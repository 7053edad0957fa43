"""The line below a cell that has destroyed the CUDA context."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

from gpumagic.cuda.process_state import STATE
from gpumagic.errors import GpuMagicWarning

CELL = """
import torch
model = torch.nn.Linear(2, 2).cuda(); many = [{'in': model.weight.detach()}]
host, number = torch.ones(2), 3
"""


pytestmark = pytest.mark.own_process


@pytest.fixture(autouse=True)
def _nothing_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(STATE, "dead_context", None)
    torch.ones(1, device="cuda")


def test_a_dead_context_is_said_with_what_is_lost(
    virtual_gpu: Any, run_cell: Callable[..., Any]
) -> None:
    run_cell(CELL)
    run_cell("for n in range(9): globals()[f'view{n}'] = model.weight[n % 2]")
    virtual_gpu.end_context(710)
    failed = run_cell("torch.cuda.synchronize()", raising=False)
    said = [bundle for bundle in failed.displays if "gpumagic" in bundle["text/plain"]]
    (text,) = [bundle["text/plain"] for bundle in said]
    assert text.count("\n") == 0
    assert text.startswith(
        "gpumagic: CUDA has failed in this process: an assertion in a kernel failed, mostly an "
        "index out of range. "
    )
    # This shell is not the whole process: it cannot be restarted in place.
    assert "CUDA works again when the kernel is restarted; with CUDA_LAUNCH_BLOCKING=1 in" in text
    assert "Lost with it: 11 variables on the GPU (model, many, view0, view1, " in text
    assert text.endswith("view5 and 3 more).")
    assert "host" not in text
    assert re.search("<details.*view5, view6, view7, view8</div></details>", said[0]["text/html"])
    # Every error of CUDA's from now on, and no other.
    assert "CUDA has failed" in run_cell("torch.ones(1, device='cuda').cpu()", raising=False).text
    assert run_cell("no_such_name", raising=False).text == ""
    assert (
        "CUDA has failed in this process (an assertion in a kernel failed" in run_cell("%gpu").text
    )
    assert "CUDA has failed in this process (an assertion" in "".join(
        run_cell("selection = %gpu reset -o -q").error or run_cell("selection").value.notes
    )


def test_what_a_dead_context_leaves_undone(virtual_gpu: Any, run_cell: Callable[..., Any]) -> None:
    """Nothing is deleted in vain, and no way out is offered that is none."""
    run_cell("import torch; big = torch.ones(2**20, device='cuda')")
    virtual_gpu.end_context(710)
    failed = run_cell("%gpumem free big", raising=False)
    assert str(failed.error).startswith(
        "nothing was freed or deleted: CUDA has failed in this process (an assertion in a kernel"
    )
    assert "\n" not in str(failed.error)
    assert run_cell("'big' in globals()").value is True
    assert "CUDA has failed in this process (an assertion" in run_cell("%gpumem").text
    with pytest.warns(GpuMagicWarning, match="Too late"):
        late = run_cell("%gpu off -o -q").value
    assert [way.command for way in late.ways_out] == ["%gpu off --restart"]


def test_the_error_of_another_process_is_not_this_ones(
    virtual_gpu: Any, run_cell: Callable[..., Any]
) -> None:
    run_cell("import torch; x = torch.ones(2, device='cuda')")
    text = "Caught RuntimeError in worker 0.\\nCUDA error: device-side assert triggered"
    failed = run_cell(f"raise RuntimeError('{text}')", raising=False)
    assert "CUDA has failed" not in failed.text
    assert "gpumagic: an assertion in a kernel failed" in failed.text
    assert STATE.dead_context is None
