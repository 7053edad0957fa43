"""The gallery: its page and its pictures agree with the items that the program draws."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from PIL import Image

from tests.tools.gallery.items import ITEMS
from tests.tools.gallery.page import FOLDER, PAGE, page, pictures

#: What GitHub and a browser load without a wait, in bytes: all pictures together.
_MOST = 4_000_000
#: The least width of a sheet, two pictures side by side, and of a terminal of 80 columns.
_SHEET, _TERMINAL = 1280 + 700, 80 * 8


def test_the_page_is_that_of_the_items() -> None:
    """If this fails: ``python -m tests.tools.gallery docs/gallery``."""
    text = PAGE.read_text(encoding="utf-8")
    assert text == page()
    assert re.findall(r"^## (.+)$", text, re.MULTILINE) == [item.title for item in ITEMS]


def test_every_item_has_its_pictures() -> None:
    assert len({item.name for item in ITEMS}) == len(ITEMS)
    for item in ITEMS:
        found = pictures(item)
        in_terminal = any(cell.terminal is not None for cell in item.cells if not cell.hidden)
        assert f"{item.name}-after.png" in found
        assert (f"{item.name}-before.png" in found) is not item.is_new
        assert (f"{item.name}-terminal-after.png" in found) is in_terminal
        assert (f"{item.name}-terminal-before.png" in found) is (in_terminal and not item.is_new)


def test_the_folder_has_only_these_and_is_small() -> None:
    files = sorted(FOLDER.iterdir())
    assert [path.name for path in files] == sorted(
        name for item in ITEMS for name in pictures(item)
    )
    assert sum(path.stat().st_size for path in files) < _MOST


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.png")), ids=lambda path: path.stem)
def test_a_picture_is_legible(path: Path) -> None:
    """It has few colours, its full width, and ink that differs from the ground."""
    with Image.open(path) as picture:
        assert picture.format == "PNG"
        assert picture.mode == "P"
        assert picture.width >= (_TERMINAL if "-terminal-" in path.stem else _SHEET)
        darkest, lightest = picture.convert("L").getextrema()
        assert lightest - darkest > 150
        assert 4 < len(picture.getcolors() or []) <= 256


def test_a_terminals_screen_has_what_is_to_be_seen() -> None:
    """Colours and dim text, and of a display that is updated in place its last state."""
    pyte = pytest.importorskip("pyte", reason="pip install --group frontends")
    from tests.tools.gallery.screen import Screen, overwritten

    screen = Screen(20, 10)
    pyte.Stream(screen).feed(
        "50 %\r\nold\r\n\x1b[2A100 %\r\n\x1b[Knew\r\n\x1b[31mred\x1b[0m \x1b[2mdim\x1b[0m no"
    )
    lines = screen.spans()
    assert ["".join(text for text, _ in line).rstrip() for line in lines] == [
        "100 %",
        "new",
        "red dim no",
    ]
    (red, ink), _, (dim, faint), _ = lines[2]
    assert (red, dim) == ("red", "dim")
    assert "color:#cd3131" in ink
    assert "opacity" in faint
    assert "opacity" not in ink
    assert overwritten("10 %|█  |\r100 %|███|\r   ") == "    %|███|"
