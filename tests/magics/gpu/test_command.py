"""What a line of ``%gpu`` shows and returns; the effects of choices have tests of their own."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from IPython.core.error import UsageError

from gpumagic.doctor.diagnosis import Diagnosis
from gpumagic.errors import GpuMagicWarning
from gpumagic.selection import choice_undo


@pytest.fixture(autouse=True)
def _restored(virtual_gpu: Any) -> Iterator[None]:
    before = choice_undo.take()
    yield
    choice_undo.restore(before)


def test_processes_are_shown_where_they_are_asked_for(run_cell: Callable[..., Any]) -> None:
    shown = [run_cell(f"%gpu {line} -o -q").value.show_processes for line in ("", "-p")]
    assert shown == [False, True]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("line", ["%gpu off", "%gpu off -q -v chosen"])
def test_a_warning_that_is_an_error_comes_below_the_result(
    run_cell: Callable[..., Any], line: str
) -> None:
    """From Python 3.11 on without a frame of ours.

    Earlier ones raise an exception again with the traceback that it had when it was caught.
    """
    run_cell("import torch; torch.empty(1, device='cuda');")  # every choice is too late
    ran = run_cell(line, raising=False)
    assert isinstance(ran.error, GpuMagicWarning)
    quiet = "-q" in line
    assert ("✗ Too late for 'off'" in ran.text) != quiet
    assert ("Too late" if quiet else "see above") in str(ran.error)
    assert "GpuMagicWarning" in ran.stdout
    if sys.version_info >= (3, 11):
        assert "gpumagic/magics" not in ran.stdout
    if quiet:
        assert run_cell("chosen.status").value == "too-late"


# --- the table ------------------------------------------------------------------------------------


def test_below_the_first_table_is_what_to_try_next(run_cell: Callable[..., Any]) -> None:
    assert "Try next" not in run_cell("%gpu -q").stdout
    first, second = run_cell("%gpu"), run_cell("%gpu")
    for magic in ("Try next: ", "%%cudatime", "%gpumem"):
        assert magic in first.stdout
    assert "Try next" not in second.stdout


# --- verbs ----------------------------------------------------------------------------------------


def test_doctor_is_shown_and_returned(
    run_cell: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch  # noqa: F401, so that no child process need be asked

    # torch 2.6 sets it when it initializes CUDA, as another test may have done here.
    monkeypatch.delenv("CUDA_MODULE_LOADING", raising=False)
    shown = run_cell("%gpu doctor")
    # Another test may have started CUDA in this process: the doctor says so then.
    assert re.match(r"torch can use 4 GPUs here\.( CUDA [^\n]*\.)?\n✓ ", shown.text)
    assert re.search(r"^✓  driver", shown.text, re.MULTILINE)
    assert "#2e9e44" in shown.html
    quiet = run_cell("%gpu doctor -o -q -v report")
    assert quiet.text == ""
    assert run_cell("report").value is quiet.value
    assert isinstance(quiet.value, Diagnosis)
    assert run_cell("%gpu doctor;").text == ""


def test_without_ipyparallel(run_cell: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ipyparallel", None)
    for line in ("%gpu cluster", "%gpu pin", "%gpu off --cluster", "%cudatime --cluster 1"):
        with pytest.raises(UsageError, match=r"install it with: pip install ipyparallel"):
            run_cell(line)
