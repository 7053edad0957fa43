"""What holds for whatever result is shown: headers, signs, hovers, plain data."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from gpumagic.render import text
from gpumagic.render.blocks import Block, Callout, Fold, Grid, Line, Styled
from gpumagic.results.base import Result, as_html, as_text
from tests.results.__main__ import main
from tests.results.examples import EXAMPLES


def flat(blocks: Sequence[Block]) -> Iterator[Line | Grid]:
    for block in blocks:
        if isinstance(block, (Callout, Fold)):
            yield from flat(block.blocks)
        else:
            yield block


def cells(result: Result) -> Iterator[Styled]:
    for block in flat(result.blocks()):
        rows = [block.parts] if isinstance(block, Line) else block.rows
        yield from (cell for row in rows for cell in row)


@pytest.mark.parametrize("name", EXAMPLES)
def test_it_is_drawn_and_is_plain_data(name: str) -> None:
    result = EXAMPLES[name]
    assert as_text(result, 80)
    assert as_html(result).startswith("<div")
    assert json.loads(result.to_json()).keys() == result.to_dict().keys()
    assert repr(result).startswith(f"<{name}")
    pytest.importorskip("pandas")
    assert len(result.to_pandas())


@pytest.mark.parametrize("name", EXAMPLES)
def test_figures_have_one_spelling(name: str) -> None:
    """A minus sign before what is negative; one blank, an ordinary one, before a per cent sign."""
    html = as_html(EXAMPLES[name])
    words = [re.sub(r"<[^>]*>", "\n", html), *re.findall(r'(?:title|aria-label)="([^"]*)"', html)]
    for shown in (as_text(EXAMPLES[name], 300), *words):
        assert not re.findall(r"(?<![\w.\]\-])-\d+(?!\w)", re.sub(r"=-1\b|GPU-\w+", "", shown))
        assert not re.findall(r"\d%|\d[\u00a0\u2009\u202f] *%|\d {2,}%", shown)


@pytest.mark.parametrize("name", EXAMPLES)
def test_no_line_of_a_table_is_wider_than_the_terminal(name: str) -> None:
    for block in flat(EXAMPLES[name].blocks()):
        if isinstance(block, Grid) and block.rows:
            assert max(map(len, text.render([block], width=80).splitlines())) <= 80


@pytest.mark.parametrize("name", EXAMPLES)
def test_what_is_cut_has_the_whole_on_hover(name: str) -> None:
    for cell in cells(EXAMPLES[name]):
        if cell.text.rstrip().endswith("…") or re.search(r" and [\d,]+ more$", cell.text):
            assert cell.whole is not None
            assert cell.whole not in (cell.text, "")


@pytest.mark.parametrize("name", ["CellLog", "TimingLog"])
def test_a_failed_cell_has_a_sign_beside_the_colour(name: str) -> None:
    (grid,) = (b for b in EXAMPLES[name].blocks() if isinstance(b, Grid))
    failed = [row for row in grid.rows if any(cell.style == "bad" for cell in row)]
    assert [row[0].text[:2] for row in failed] == ["✗ "]
    assert all(row[0].text[:1] != "✗" for row in grid.rows if row not in failed)


@pytest.mark.parametrize("name", EXAMPLES)
def test_figures_beside_bars_are_aligned(name: str) -> None:
    """A bar, or a curve, has the same place in each row, left of figures that end together."""
    for block in flat(EXAMPLES[name].blocks()):
        if isinstance(block, Grid) and block.has_header:
            for i, column in enumerate(block.columns):
                if any(row[i].bar is not None for row in block.rows):
                    assert column.align == "right", column.header


def test_one_command_shows_them_all(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    main(["--width", "80"])
    shown = capsys.readouterr().out
    assert [line.split()[1] for line in shown.splitlines() if line.startswith("── ")] == [*EXAMPLES]
    for result in EXAMPLES.values():
        assert as_text(result, 80) in shown
    main(["Freed", "--html", str(tmp_path / "freed.html")])
    assert as_html(EXAMPLES["Freed"]) in (tmp_path / "freed.html").read_text(encoding="utf-8")
    with pytest.raises(SystemExit):
        main(["Fred"])
    assert "Freed" in capsys.readouterr().err
