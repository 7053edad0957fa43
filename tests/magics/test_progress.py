"""The progress bar between repeats."""

from __future__ import annotations

import sys
from contextlib import redirect_stderr
from io import StringIO
from typing import Any

import pytest

from gpumagic.magics import progress
from gpumagic.magics.progress import Progress


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


class Shell:
    kernel: Any = None


@pytest.fixture(autouse=True)
def _no_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "DELAY", 0.0)


@pytest.fixture
def no_tqdm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tqdm.auto", None)


@pytest.mark.usefixtures("no_tqdm")
def test_a_line_that_is_redrawn_and_removed() -> None:
    with redirect_stderr(Terminal()) as terminal:
        bar = Progress(Shell())
        bar.update(0.0)
        bar.update(0.5)
        bar.close()
        bar.close()  # a second time does nothing
    drawn = terminal.getvalue().split("\r")
    assert drawn[1] == f"%cudatime {'░' * 24}   0 %"
    assert drawn[2] == f"%cudatime {'█' * 12}{'░' * 12}  50 %"
    assert drawn[3].isspace()
    assert len(drawn[3]) >= len(drawn[2])
    assert drawn[4:] == [""]


@pytest.mark.parametrize("why", ["not enabled", "no terminal", "too early"])
def test_nothing_is_shown(why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if why == "too early":
        monkeypatch.setattr(progress, "DELAY", 1e6)
    with redirect_stderr(StringIO() if why == "no terminal" else Terminal()) as errors:
        bar = Progress(Shell(), enabled=why != "not enabled")
        bar.update(0.5)
        bar.close()
    assert errors.getvalue() == ""


@pytest.mark.usefixtures("no_tqdm")
def test_in_a_kernel_standard_error_need_not_be_a_terminal() -> None:
    shell = Shell()
    shell.kernel = object()
    with redirect_stderr(StringIO()) as errors:
        Progress(shell).update(1.0)
    assert "100 %" in errors.getvalue()


def test_tqdm_draws_where_it_is_installed() -> None:
    pytest.importorskip("tqdm")
    with redirect_stderr(Terminal()) as terminal:
        bar = Progress(Shell())
        bar.update(0.25)
        bar.close()
    assert "25 %" in terminal.getvalue()
