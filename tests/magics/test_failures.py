"""What is said below a traceback: it raises nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from gpumagic.cuda.this_process import STATE
from gpumagic.errors import GpuMagicWarning
from gpumagic.magics import magic_state
from gpumagic.magics.explaining import explain
from gpumagic.memory import oom


def test_a_failure_of_the_explanation_is_one_line(
    ip: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(error: BaseException) -> Any:
        raise RuntimeError("no answer\nmore")

    explain(magic_state.state_of(ip), ValueError("mine"))
    assert capsys.readouterr() == ("", "")
    monkeypatch.setattr(oom, "find", broken)
    explain(magic_state.state_of(ip), ValueError("mine"))
    assert capsys.readouterr() == ("", "gpumagic: no explanation (RuntimeError: no answer)\n")


# --- a cell that has destroyed the CUDA context ---------------------------------------------------


@pytest.fixture
def with_context(monkeypatch: pytest.MonkeyPatch, virtual_gpu: Any) -> Any:
    import torch

    monkeypatch.setattr(STATE, "dead_context", None)
    torch.ones(1, device="cuda")
    return virtual_gpu


@pytest.mark.own_process
def test_a_dead_context_is_said(with_context: Any, run_cell: Callable[..., Any]) -> None:
    """Below every error of CUDA's from then on, and no other."""
    with_context.end_context(710)
    for cell in ("torch.cuda.synchronize()", "torch.ones(1, device='cuda').cpu()"):
        failed = run_cell(f"import torch; {cell}", raising=False)
        assert failed.text.startswith(
            "gpumagic: CUDA has failed in this process (an assertion in a GPU kernel failed, "
            "mostly an index out of range). It works again after %gpu restart"
        )
        assert "\n" not in failed.text
    assert run_cell("no_such_name", raising=False).text == ""
    note = "CUDA has failed in this process (an assertion in a GPU kernel failed"
    for line in ("%gpu", "%gpu doctor", "%gpumem"):
        assert note in run_cell(line).text


@pytest.mark.own_process
def test_what_a_dead_context_leaves_undone(with_context: Any, run_cell: Callable[..., Any]) -> None:
    """Nothing is deleted in vain, and no way out is offered that is none."""
    run_cell("import torch; big = torch.ones(2**20, device='cuda')")
    with_context.end_context(710)
    failed = run_cell("%gpumem free big", raising=False)
    assert str(failed.error).startswith(
        "nothing was freed or deleted: CUDA has failed in this process (an assertion in a "
    )
    assert "\n" not in str(failed.error)
    assert run_cell("'big' in globals()").value is True
    with pytest.warns(GpuMagicWarning, match="Too late"):
        late = run_cell("%gpu off -o -q").value
    assert [way.command for way in late.ways_out] == ["%gpu off --restart"]


# --- what an error keeps --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "refused",
    [
        "%gpumem free b nope",
        "%gpumem free",
        "%gpumem vars --nope",
        "%gpumem snapshot /no/such/folder/file",
        "%%gpumem --against /no/such/file\nb.sum()",
        "%%gpumem --save {save} --against {save} --fail-above 0%\nc = b + b",
        "%%gpumem --fit n=1:2\nn = 3; b + b",
        "%cudatime --nope b.sum()",
        "%%cudatime -n 1\n1 +",
        "%%cudatime --lines -f nope\nb.sum()",
        "%gpu 99",
        "%%gpu 99\nb.sum()",
    ],
)
def test_an_error_of_ours_keeps_nothing_of_the_users_alive(
    refused: str, torch: Any, run_cell: Callable[..., Any], tmp_path: Any
) -> None:
    """IPython keeps the last exception, and an exception its frames."""
    save = tmp_path / "step.json"
    run_cell("import torch, weakref")
    run_cell(f"%%gpumem -q --save {save}\na = torch.ones(2**10, device='cuda')")
    run_cell("b = torch.ones(2**20, device='cuda'); list_ = [b]; alive = weakref.ref(b)")
    run_cell(refused.format(save=save), raising=False)
    run_cell("del b, list_; _ = __ = ___ = None; Out.clear()")
    assert run_cell("alive() is None").value is True


def test_nor_does_a_failure_of_ours(
    torch: Any, ip: Any, run_cell: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from gpumagic.memory import freeing

    def broken(*_: Any) -> Any:
        values = [*ip.user_ns.values()]
        assert values
        raise RuntimeError("a mistake of ours")

    monkeypatch.setattr(freeing, "_held", broken)
    run_cell("import torch, weakref; b = torch.ones(2**20, device='cuda'); alive = weakref.ref(b)")
    assert isinstance(run_cell("%gpumem free", raising=False).error, RuntimeError)
    assert run_cell("del b; alive() is None").value is True
