"""The progress of the repeats."""

from __future__ import annotations

from contextlib import redirect_stderr
from io import StringIO
from typing import Any

import pytest
from IPython.utils.capture import capture_output

from gpumagic.magics import progress
from gpumagic.magics.progress import Progress


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


class Shell:
    """A terminal's shell; one with a ``kernel`` is a notebook's."""


@pytest.fixture(autouse=True)
def _no_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "DELAY", 0.0)
    monkeypatch.setattr(progress, "PERIOD", 0.0)
    times = iter(range(1000))
    monkeypatch.setattr(progress, "perf_counter", lambda: float(next(times)))


def test_a_line_in_a_terminal_is_redrawn_and_removed() -> None:
    with redirect_stderr(Terminal()) as terminal:
        shown = Progress(Shell())
        shown.update(0.0)
        shown.update(0.5, lambda: 0.035)
        shown.close()
        shown.close()  # a second time does nothing
    drawn = terminal.getvalue().split("\r")
    assert drawn[1] == "%cudatime           0 % · 1.00 s"
    assert drawn[2] == "%cudatime  ████     50 % · 2.00 s · median 35.0 ms"
    assert drawn[3].isspace()
    assert len(drawn[3]) >= len(drawn[2])
    assert drawn[4:] == [""]


def test_an_output_of_a_notebook_is_updated_and_emptied(ip: Any) -> None:
    """Not on standard error, which front ends colour as an error."""
    shell: Any = Shell()
    shell.kernel = object()
    with redirect_stderr(StringIO()) as errors, capture_output() as captured:
        shown = Progress(shell)
        for done in (0.25, 1.0):
            shown.update(done, lambda: 0.035)
        shown.close()
        shown.close()
    assert errors.getvalue() == ""
    texts = [output.data["text/plain"] for output in captured.outputs]
    assert texts == [
        "%cudatime  ██       25 % · 1.00 s · median 35.0 ms",
        "%cudatime  ████████ 100 % · 2.00 s · median 35.0 ms",
        "",
    ]
    assert len({output.transient["display_id"] for output in captured.outputs}) == 1
    assert "median 35.0 ms" in captured.outputs[0].data["text/html"]


@pytest.mark.parametrize("why", ["not enabled", "no terminal", "too early"])
def test_nothing_is_shown(why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if why == "too early":
        monkeypatch.setattr(progress, "DELAY", 1e6)
    asked: list[float] = []

    def median() -> float:
        asked.append(1.0)
        return 1.0

    with redirect_stderr(StringIO() if why == "no terminal" else Terminal()) as errors:
        shown = Progress(Shell(), enabled=why != "not enabled")
        shown.update(0.5, median)
        shown.close()
    assert errors.getvalue() == ""
    assert not asked  # it costs time
