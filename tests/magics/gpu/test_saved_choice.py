"""``%gpu SPEC --save``: what is saved, undone, and applied when gpumagic loads."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpumagic.cuda.process_state import STATE, Choice
from gpumagic.cuda.visible_devices import MASK, ORDER
from gpumagic.errors import DeviceError, SpecError
from gpumagic.magics.gpu import saved_choice
from gpumagic.results import Device, Selection, Status
from gpumagic.selection import apply, environment
from gpumagic.selection.spec import parse


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The attributes of a kernel's shell that are used, in a process without a choice."""
    monkeypatch.setattr(STATE, "choice", Choice())
    monkeypatch.delenv(MASK, raising=False)
    monkeypatch.delenv(ORDER, raising=False)
    path = tmp_path / "kernel-1.json"
    path.touch()
    return SimpleNamespace(kernel=SimpleNamespace(parent=SimpleNamespace(abs_connection_file=path)))


def chosen(spec: str, mask: str | None, status: Status = "applied") -> Selection:
    return Selection(spec, {MASK: mask, ORDER: None}, status, (Device(0),), message="Too late.")


def test_a_choice_is_saved_and_reset_ends_that(shell: Any) -> None:
    assert saved_choice.saved(shell) is None
    noted = saved_choice.save(shell, parse("0"), chosen("0", "GPU-aa"))
    assert noted.notes[-1].startswith("Saved: applied again")
    before = saved_choice.saved(shell)
    assert before == ("0", {MASK: "GPU-aa", ORDER: None})
    noted = saved_choice.save(shell, parse("RESET"), chosen("RESET", None))
    assert noted.notes == ("No choice is saved for this kernel any more.",)
    assert saved_choice.saved(shell) is None
    saved_choice.put_back(shell, before)
    assert saved_choice.saved(shell) == before
    saved_choice.put_back(shell, None)
    assert saved_choice.saved(shell) is None


@pytest.mark.parametrize(
    "shell", [SimpleNamespace(), SimpleNamespace(kernel=SimpleNamespace(parent=None))]
)
def test_only_a_kernel_can_save_a_choice(shell: Any) -> None:
    with pytest.raises(SpecError, match="--save is for Jupyter kernels"):
        saved_choice.saved(shell)
    saved_choice.apply(shell)  # nothing to apply


@pytest.mark.parametrize(
    ("status", "printed", "mask"),
    [
        ("applied", "%gpu 0 --save: applied, this kernel sees 1 GPU.\n", "GPU-aa"),
        ("too-late", "%gpu 0 --save: not applied. Too late.\n", None),
    ],
)
def test_what_applying_prints(
    shell: Any,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    status: Status,
    printed: str,
    mask: str | None,
) -> None:
    def apply_saved(spec: Any, variables: Any, *, claim: bool) -> Selection:
        environment.write(variables)
        return chosen(spec.text, variables[MASK], status)

    monkeypatch.setattr(apply, "apply_saved", apply_saved)
    saved_choice.save(shell, parse("0"), chosen("0", "GPU-aa"))
    saved_choice.apply(shell)
    assert capsys.readouterr().out == printed
    assert environment.now()[MASK] == mask
    environment.write({MASK: "GPU-aa"})
    saved_choice.apply(shell)
    assert capsys.readouterr().out == ""  # it is in force already
    environment.undo()


def test_a_choice_that_cannot_be_applied_is_one_line(
    shell: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def apply_saved(spec: Any, variables: Any, *, claim: bool) -> Selection:
        raise DeviceError("the GPUs cannot be listed: no NVML")

    monkeypatch.setattr(apply, "apply_saved", apply_saved)
    saved_choice.save(shell, parse("0"), chosen("0", "GPU-aa"))
    saved_choice.apply(shell)
    assert capsys.readouterr().out == (
        "%gpu 0 --save: not applied: the GPUs cannot be listed: no NVML\n"
    )
