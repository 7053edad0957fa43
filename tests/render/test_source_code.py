"""Source in colours: each line as a part of the whole."""

from __future__ import annotations

import pytest

from gpumagic.render import colors, html, text
from gpumagic.render.blocks import Cell, Column, Grid
from gpumagic.render.source_code import Part, SourceCode

LINES = ("def f(x):", '    """one', '    two <b>"""', "\treturn 1.5  # why", "")
SOURCE = SourceCode(LINES)
GRID = Grid((Column("Source"),), tuple((Cell.of_code(SOURCE, i),) for i in range(5)))


def test_parts() -> None:
    assert SOURCE.parts(0)[0] == Part("def ", "keyword")
    assert Part("f", "name") in SOURCE.parts(0)
    assert SOURCE.parts(2) == [Part('    two <b>"""', "string")]  # within the text
    assert SOURCE.parts(3)[0] == Part("    return ", "keyword")
    aligned = SourceCode(["if x:", "        y =   1   # why", "    ", "z = 2   "])
    texts = [part.text for i in range(4) if i != 2 for part in aligned.parts(i)]
    assert not [text for text in texts if text.isspace()]  # exported HTML would lose it
    assert [part.kind for part in SOURCE.parts(3) if part.kind] == ["keyword", "number", "comment"]
    for i, line in enumerate(SOURCE.lines):
        assert "".join(part.text for part in SOURCE.parts(i)) == line


@pytest.mark.parametrize("lines", [("a\rb = 1",), ("x = " + "1" * 300_000,)], ids=["end", "long"])
def test_what_is_not_coloured(lines: tuple[str, ...]) -> None:
    assert SourceCode(lines).parts(0) == [Part(lines[0], "")]


def test_in_html_and_in_a_terminal_but_not_in_plain_text() -> None:
    drawn = html.render([GRID])
    assert f'currentColor 40%, {colors.CODE["keyword"]})">def </span>' in drawn
    assert "two &lt;b&gt;" in drawn
    assert "<b>" not in drawn
    assert "\x1b[35mdef" in text.render([GRID], color=True)
    plain = text.render([GRID])
    assert "\x1b" not in plain
    assert "    return 1.5  # why" in plain
