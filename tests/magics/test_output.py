"""What a magic does with its result, and an output whose content is replaced."""

from __future__ import annotations

import argparse
import re
import sys
from contextlib import redirect_stdout
from io import BytesIO, StringIO, TextIOWrapper
from pathlib import Path
from typing import Any

import pytest
from IPython.utils.capture import capture_output

from gpumagic.errors import GpuMagicWarning
from gpumagic.magics import failures
from gpumagic.magics.extension import of
from gpumagic.magics.output import LiveDisplay, hand_over, say, show, show_picture, warn
from gpumagic.magics.terminal import write_line
from gpumagic.results import Explanation, OutOfMemory, Selection
from tests.results.examples import EXAMPLES

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
    displayed = of(ip).format_result
    assert displayed(RESULT) == {"text/plain": "<Explanation: the text>"}
    assert displayed(other) == other._repr_mimebundle_()
    ip.execution_count += 1  # in a later cell
    assert displayed(RESULT) == RESULT._repr_mimebundle_()


def test_a_result_that_is_gone_was_not_another_one(ip: Any) -> None:
    """Which may have its id."""
    with capture_output():
        show(ip, Explanation("gone at once"))
    assert not any(of(ip).was_displayed(Explanation("another")) for _ in range(1000))


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


class Screen(Terminal):
    """A terminal of ``columns`` and ``lines`` that obeys cursor sequences, and scrolls."""

    def __init__(self, columns: int, lines: int) -> None:
        super().__init__()
        self.columns, self.lines = columns, lines
        #: Everything from the first row on, also what has scrolled away.
        self.rows = [""]
        self.row = 0

    def write(self, text: str) -> int:
        for part in re.findall(r"\x1b\[\d*[FJ]|\n|[^\x1b\n]+", text):
            if part == "\n":
                self.row += 1
                self.rows += [""] * (self.row == len(self.rows))
            elif part.endswith("F") and part[0] == "\x1b":
                top = max(len(self.rows) - self.lines, 0)
                self.row = max(self.row - int(part[2:-1]), top)
            elif part == "\x1b[J":
                del self.rows[self.row + 1 :]
                self.rows[self.row] = ""
            else:
                for start in range(0, len(part), self.columns):
                    if start:
                        self.write("\n")
                    self.rows[self.row] = part[start : start + self.columns]
        return len(text)

    @property
    def shown(self) -> list[str]:
        return [row for row in self.rows if row]


class Encoded(TextIOWrapper):
    """Standard output in an encoding, of a terminal or not."""

    def __init__(self, encoding: str, terminal: bool) -> None:
        super().__init__(BytesIO(), encoding=encoding)
        self._terminal = terminal

    def isatty(self) -> bool:
        return self._terminal

    @property
    def shown(self) -> str:
        self.flush()
        buffer = self.buffer
        assert isinstance(buffer, BytesIO)
        return buffer.getvalue().decode(self.encoding)


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp437", "utf-8"])
@pytest.mark.parametrize("terminal", [True, False])
def test_an_encoding_without_our_characters(
    ip: Any, monkeypatch: pytest.MonkeyPatch, encoding: str, terminal: bool
) -> None:
    """Nothing fails; where a sign of ASCII must do for a character, columns stay columns."""
    table, line = EXAMPLES["DeviceTable"], Explanation("5 µs ± 2 µs … ≤ 3 × 名 ✗")
    screen = Encoded(encoding, terminal)
    monkeypatch.setattr(sys, "stdout", screen)
    show(ip, table)
    say(ip, "5 µs → 2 µs")
    show(ip, line)
    with LiveDisplay(ip) as live:
        live.text("a bar: ████▌")
        live.keep()
    assert of(ip).format_result(Explanation("→ ✗"))["text/plain"].encode(encoding)
    bars = {"ascii": "####", "latin-1": "####"}.get(encoding, "████")
    assert f"a bar: {bars}" in screen.shown
    micro = "u" if encoding == "ascii" else "µ"
    assert f"5 {micro}s" in screen.shown
    assert ("5 us +- 2 us ~ <= 3 x ? x" in screen.shown) == (encoding == "ascii")


def test_in_a_dumb_terminal_the_cursor_stays(ip: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    with redirect_stdout(Terminal()) as screen, LiveDisplay(ip) as live:
        live.text("one\ntwo")
        live.text("three")
    assert screen.getvalue() == "one\ntwo\nthree\n"


SENTENCE = "a sentence that does not fit into forty columns, and is broken between its words"


@pytest.mark.parametrize("environment", [{"NO_COLOR": "1"}, {"TERM": "dumb"}, {"TERM": "xterm"}])
def test_no_terminal_breaks_words(
    ip: Any, monkeypatch: pytest.MonkeyPatch, environment: dict[str, str]
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with redirect_stdout(Terminal()) as screen:
        show(ip, Explanation(SENTENCE))
        say(ip, SENTENCE)
        show_picture(ip, Picture(), SENTENCE, None, "%gpu plot")
        show_picture(ip, Picture(), SENTENCE, Path("picture.svg"), "%gpu plot")
        with LiveDisplay(ip) as live:
            live.result(Explanation(SENTENCE))
            live.keep()
        print(of(ip).format_result(Explanation(SENTENCE))["text/plain"])
        write_line(SENTENCE)
    lines = screen.getvalue().splitlines()
    assert [line for line in lines if len(line) > 40] == []
    assert " ".join(screen.getvalue().split()).count(SENTENCE) == 7


class Picture:
    """What `show_picture` needs of a picture."""

    def bundle(self, text: str) -> tuple[dict[str, Any], dict[str, Any]]:
        return {"text/plain": text}, {}


def test_a_console_breaks_no_words(ip: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """``jupyter console`` prints text/plain as it arrives."""

    class Kernel:
        def get_parent(self, channel: str) -> dict[str, Any]:
            return {"header": {"msg_id": "8ae1-77_4242_3"}, "content": {"allow_stdin": True}}

    monkeypatch.setattr(ip, "kernel", Kernel(), raising=False)
    monkeypatch.setenv("COLUMNS", "40")
    with capture_output() as captured:
        show(ip, Explanation(SENTENCE))
        say(ip, SENTENCE)
    assert len(captured.outputs) == 2
    for shown in captured.outputs:
        assert [len(line) <= 40 for line in shown.data["text/plain"].splitlines()] == [True] * 3
        assert SENTENCE in shown.data["text/html"]


LONG = "a line of many words that is wider than the terminal, " * 3


@pytest.mark.parametrize("columns", [40, 80, 200])
def test_no_line_is_left_behind(ip: Any, columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    with redirect_stdout(Screen(columns, 30)) as screen, LiveDisplay(ip) as live:
        for look in range(5):
            live.text(f"header\n{LONG}\n語{LONG}\nlook {look}")
        live.keep()
    assert screen.shown.count("header") == 1
    assert screen.shown[-1] == "look 4"
    assert sum("wider" in row for row in screen.shown) <= 6


def test_what_is_higher_than_the_terminal_is_cut_until_the_end(
    ip: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("LINES", "10")
    with redirect_stdout(Screen(80, 10)) as screen, LiveDisplay(ip) as live:
        for look in range(5):
            live.text("\n".join(f"{look}: row {row}" for row in range(30)))
            assert screen.shown == [f"{look}: row {row}" for row in range(9)]
        live.keep()
    assert screen.shown == [f"4: row {row}" for row in range(30)]


def test_a_console_of_a_kernel_replaces_text(ip: Any) -> None:
    with capture_output() as captured, LiveDisplay(Shell(), console=True) as live:
        live.text("one\ntwo")
        live.text("three")
        live.keep()
    assert captured.stdout == "one\ntwo\n\x1b[2F\x1b[Jthree\n"
    assert not captured.outputs


def test_in_a_terminal_the_last_content_can_stay(ip: Any) -> None:
    with redirect_stdout(Terminal()) as screen, LiveDisplay(ip) as live:
        live.text("one")
        live.keep()
    assert screen.getvalue() == "one\n"


def test_a_warning_in_a_terminal_breaks_no_words(ip: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setattr(sys, "stderr", Terminal())
    with pytest.warns(GpuMagicWarning) as caught:
        warn(SENTENCE)
    shown = f"%gpu:1: GpuMagicWarning: {caught[0].message}".splitlines()
    assert [len(line) <= 60 for line in shown] == [True, True]
    assert " ".join(str(caught[0].message).split()) == SENTENCE


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


COLORED = pytest.mark.parametrize(
    ("environment", "terminal", "theme", "colored"),
    [
        ({"TERM": "xterm"}, True, "linux", True),
        ({"TERM": "xterm", "NO_COLOR": ""}, True, "linux", True),
        ({"TERM": "xterm", "NO_COLOR": "1"}, True, "linux", False),
        ({"TERM": "dumb"}, True, "linux", False),
        ({"TERM": "xterm"}, False, "linux", False),
        ({"TERM": "xterm"}, True, "nocolor", False),
    ],
)


@COLORED
def test_colours_on_a_terminal(
    ip: Any,
    monkeypatch: pytest.MonkeyPatch,
    environment: dict[str, str],
    terminal: bool,
    theme: str,
    colored: bool,
) -> None:
    """Long lines are broken in any terminal; text/plain, which may be saved, is plain and whole."""
    output = screen_of(ip, monkeypatch, environment, terminal, theme)
    result = Selection("0", {"CUDA_VISIBLE_DEVICES": "0"}, "applied")
    show(ip, result)
    shown = output.getvalue()
    assert ("\x1b[32mapplied\x1b[0m" in shown) == colored
    assert len(shown.strip().splitlines()) == (2 if terminal else 1)
    assert "\x1b" not in result._repr_mimebundle_()["text/plain"]


@COLORED
def test_what_is_updated_has_the_same_colours(
    ip: Any,
    monkeypatch: pytest.MonkeyPatch,
    environment: dict[str, str],
    terminal: bool,
    theme: str,
    colored: bool,
) -> None:
    """Its rows are counted without them: none is left behind."""
    output = screen_of(ip, monkeypatch, environment, terminal, theme)
    result = Selection("0", {"CUDA_VISIBLE_DEVICES": "0"}, "applied")
    with LiveDisplay(ip) as live:
        live.result(result)
        live.result(result)
        live.keep()
    shown = output.getvalue()
    assert ("\x1b[32mapplied\x1b[0m" in shown) == colored
    rows = shown[: len(shown) // 2].count("\n")
    assert ("\x1b[2F\x1b[J" in shown) == (terminal and environment["TERM"] != "dumb")
    assert rows == 2


@COLORED
def test_a_failure_is_explained_in_the_same_colours(
    ip: Any,
    monkeypatch: pytest.MonkeyPatch,
    environment: dict[str, str],
    terminal: bool,
    theme: str,
    colored: bool,
) -> None:
    report = OutOfMemory(device=0, requested=1 << 30, where="In[3] line 2")
    monkeypatch.setattr("gpumagic.magics.failures._known", lambda shell, error: report)
    output = screen_of(ip, monkeypatch, environment, terminal, theme)
    failures.explain(ip, ValueError())
    shown = output.getvalue()
    assert ("\x1b[31m✗ Out of memory on cuda:0\x1b[0m" in shown) == colored
    assert "✗ Out of memory on cuda:0" in shown
    assert ("\x1b" in shown) == colored


def screen_of(
    ip: Any,
    monkeypatch: pytest.MonkeyPatch,
    environment: dict[str, str],
    terminal: bool,
    theme: str,
) -> StringIO:
    """Return the standard output that is a terminal, or none, 40 columns wide."""
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("COLUMNS", "40")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    output = StringIO()
    output.isatty = lambda: terminal  # type: ignore[method-assign]
    monkeypatch.setattr(ip, "colors", theme)
    monkeypatch.setattr(sys, "stdout", output)
    return output
