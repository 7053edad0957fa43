"""What is drawn of a result, as a whole: its text, and the same words in its HTML."""

from __future__ import annotations

import warnings
from html.parser import HTMLParser
from types import ModuleType

import pytest

from gpumagic.results.base import Result, as_html, as_text

#: Characters of bars, rules and the line below a table's headers: text has them, HTML has shapes.
_SHAPES = dict.fromkeys(map(ord, "█▉▊▋▌▍▎▏▓▒░┃─"), " ")


@pytest.fixture
def matplotlib() -> ModuleType:
    """matplotlib, whose import may warn of its own dependencies."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip("matplotlib.figure")


def check_drawing(result: Result, text: str, *, width: int = 200) -> None:
    """Assert that ``text`` is what a result shows in a terminal, and its words in a notebook.

    In HTML no column is dropped for want of width: ``text`` must be wide enough for all.
    """
    assert as_text(result, width) == text
    lines = [line.translate(_SHAPES).split() for line in text.splitlines()]
    html = _Lines()
    html.feed(as_html(result))
    assert [line.split() for line in html.lines if line.split()] == [line for line in lines if line]


class _Lines(HTMLParser):
    """The lines of a result's HTML: one for each ``<div>`` and each row of a table.

    Of what is folded, the summary only, as in text.
    """

    def __init__(self) -> None:
        super().__init__()
        self.lines = [""]
        self._folded = False

    def handle_endtag(self, tag: str) -> None:
        self._folded = tag == "summary" or (self._folded and tag != "details")

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag in ("div", "tr"):
            self.lines.append("")
        elif tag in ("td", "th"):
            self.lines[-1] += " "

    def handle_data(self, data: str) -> None:
        self.lines[-1] += "" if self._folded else data.translate(_SHAPES)
