"""What a magic does with its result, and an output whose content is replaced."""

from __future__ import annotations

import argparse
from contextlib import redirect_stdout
from io import StringIO
from typing import Any

import pytest
from IPython.utils.capture import capture_output

from gpumagic.magics.extension import of
from gpumagic.magics.output import LiveDisplay, hand_over, show
from gpumagic.results import Explanation

RESULT = Explanation("the text")


def options(**given: Any) -> argparse.Namespace:
    return argparse.Namespace(**{"quiet": False, "variable": None, "output": False, **given})


def test_a_result_is_shown_as_text_and_html(ip: Any) -> None:
    with capture_output() as captured:
        show(ip, RESULT, metadata={"gpumagic": 1})
    (shown,) = captured.outputs
    assert shown.data["text/plain"] == "the text"
    assert "the text" in shown.data["text/html"]
    assert shown.metadata == {"gpumagic": 1}


def test_what_its_cell_has_shown_is_one_line(ip: Any) -> None:
    other = Explanation("another")
    with capture_output():
        show(ip, RESULT)
    displayed = of(ip).format_result
    assert displayed(RESULT) == {"text/plain": "<Explanation: the text>"}
    assert displayed(other) == other._repr_mimebundle_()
    ip.execution_count += 1  # in a later cell
    assert displayed(RESULT) == RESULT._repr_mimebundle_()


@pytest.mark.parametrize(
    ("given", "silent", "shown", "returned", "stored"),
    [
        ({}, False, True, False, False),
        ({"output": True}, False, True, True, False),
        ({"quiet": True, "variable": "x"}, False, False, False, True),
        ({"output": True, "variable": "x"}, True, False, True, True),
    ],
)
def test_the_result_options(
    ip: Any, given: dict[str, Any], silent: bool, shown: bool, returned: bool, stored: bool
) -> None:
    with capture_output() as captured:
        value = hand_over(ip, RESULT, options(**given), silent=silent)
    assert bool(captured.outputs) is shown
    assert value is (RESULT if returned else None)
    assert ip.user_ns.get("x") is (RESULT if stored else None)


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


def test_in_a_terminal_the_cursor_goes_up(ip: Any) -> None:
    with redirect_stdout(Terminal()) as screen, LiveDisplay(ip) as live:
        live.text("one\ntwo")
        live.result(RESULT)
    assert screen.getvalue() == "one\ntwo\n\x1b[2F\x1b[Jthe text\n\x1b[1F\x1b[J"


def test_in_a_terminal_the_last_content_can_stay(ip: Any) -> None:
    with redirect_stdout(Terminal()) as screen, LiveDisplay(ip) as live:
        live.text("one")
        live.keep()
    assert screen.getvalue() == "one\n"


def test_quiet(ip: Any) -> None:
    with redirect_stdout(Terminal()) as screen, LiveDisplay(ip, quiet=True) as live:
        live.text("one")
    assert screen.getvalue() == ""


class Shell:
    """A shell with a kernel."""

    kernel = None


def test_in_a_notebook_the_output_is_updated(ip: Any) -> None:
    with capture_output() as captured, LiveDisplay(Shell()) as live:
        live.text("one")
        live.result(RESULT)
    first, second, removed = captured.outputs
    assert first.data["text/plain"] == "one"
    assert second.data["text/plain"] == "the text"
    assert removed.data == {"text/plain": ""}
