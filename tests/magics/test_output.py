"""What a magic shows in a terminal and in a notebook, and an output that is replaced."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import redirect_stdout
from functools import partial
from io import StringIO
from typing import Any

import pytest
from IPython.utils.capture import capture_output

from gpumagic.magics.delivery import format_result, say, show
from gpumagic.magics.live_display import LiveDisplay
from gpumagic.magics.magic_state import state_of
from gpumagic.results.base import Explanation
from gpumagic.results.selection import Selection
from tests.support.shells import Ran

RESULT = Explanation("the text")
SENTENCE = " ".join(["what is longer than a line of this terminal, word by word"] * 2)


def test_a_line_is_printed_in_a_terminal_and_an_output_in_a_notebook(
    ip: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is printed in a notebook is broken within words."""
    with capture_output() as captured:
        say(ip, "a <line>")
    assert (captured.stdout, captured.outputs) == ("a <line>\n", [])
    monkeypatch.setattr(ip, "kernel", object(), raising=False)
    with capture_output() as captured:
        say(ip, "a <line>")
    (shown,) = captured.outputs
    assert captured.stdout == ""
    assert shown.data["text/plain"] == "a <line>"
    assert "a &lt;line&gt;" in shown.data["text/html"]


def test_what_its_cell_has_shown_is_one_line(ip: Any) -> None:
    other = Explanation("another")
    with capture_output():
        show(ip, RESULT)
    displayed = partial(format_result, state_of(ip))
    assert displayed(RESULT) == {"text/plain": "<Explanation: the text>"}
    assert displayed(other) == other._repr_mimebundle_()
    ip.execution_count += 1  # in a later cell
    assert displayed(RESULT) == RESULT._repr_mimebundle_()


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


def test_no_terminal_breaks_words(ip: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Elsewhere lines are whole."""
    monkeypatch.setenv("COLUMNS", "60")
    with redirect_stdout(Terminal()) as screen:
        say(ip, SENTENCE)
    rows = screen.getvalue().splitlines()
    assert max(map(len, rows)) <= 60
    assert " ".join(map(str.strip, rows)) == SENTENCE
    with redirect_stdout(StringIO()) as log:
        say(ip, SENTENCE)
    assert log.getvalue() == f"{SENTENCE}\n"


@pytest.mark.parametrize(
    ("environment", "terminal", "theme", "colored"),
    [
        ({"TERM": "xterm"}, True, "linux", True),
        ({"TERM": "xterm", "NO_COLOR": "1"}, True, "linux", False),
        ({"TERM": "dumb"}, True, "linux", False),
        ({"TERM": "xterm"}, False, "linux", False),
        ({"TERM": "xterm"}, True, "nocolor", False),
    ],
)
def test_colours_on_a_terminal(
    ip: Any, monkeypatch: Any, environment: Any, terminal: bool, theme: str, colored: bool
) -> None:
    """text/plain, which may be saved, is plain."""
    monkeypatch.delenv("NO_COLOR", raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(ip, "colors", theme)
    with redirect_stdout(Terminal() if terminal else StringIO()) as output:
        show(ip, Selection("0", {"CUDA_VISIBLE_DEVICES": "0"}, "applied"))
    assert ("\x1b[32mapplied\x1b[0m" in output.getvalue()) == colored
    assert "\x1b" not in RESULT._repr_mimebundle_()["text/plain"]


def test_progress_in_a_notebook_is_an_output_and_removed(
    ip: Any, run_cell: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch, clock: Any
) -> None:
    """Not on standard error, which front ends colour as an error."""
    monkeypatch.setattr(ip, "kernel", object(), raising=False)
    run_cell("import time")
    ran = run_cell("%cudatime -n 1 -r 6 -w 0 time.sleep(0.5)")
    assert ran.stderr == ""
    assert re.search(r"%cudatime: 50 %, 1\.5\d s", ran.text)
    assert {"text/plain": ""} in ran.displays
    assert run_cell("%cudatime -q -n 1 -r 6 -w 0 time.sleep(0.5)").text == ""
    assert "50 %" not in run_cell("%cudatime -n 1 -r 6 -w 0 time.sleep(0.1)").text, "too early"


def test_progress_in_a_terminal_is_its_last_line_and_removed(
    ip: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes no second row, which could not be removed."""
    monkeypatch.setenv("COLUMNS", "40")
    screen = Terminal()
    with LiveDisplay(ip, stream=screen) as live:
        live.text(SENTENCE)
    _, shown, end = screen.getvalue().split("\r\x1b[2K")
    assert SENTENCE.startswith(shown)
    assert len(shown) == 39
    assert end == ""
