"""The pages of ``docs/``: Markdown whose ``python`` blocks are the cells of a notebook.

The cells of a page run in one kernel, from top to bottom: by ``make site``, which shows what they
show, and by the tests. A block that begins with ```` ```python raises-exception ```` is meant to
fail; blocks of any other language are not executed.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tests.support.kernels import ROOT

if TYPE_CHECKING:  # nbformat takes a second of CPU time to import
    import nbformat

DOCS = ROOT / "docs"
_BLOCK = re.compile(r"^```python *([\w-]*)\n(.*?)^```$\n?", re.MULTILINE | re.DOTALL)


class Cell(NamedTuple):
    """A cell of a page, and what is written above it."""

    before: str
    source: str
    #: Whether it is meant to fail.
    fails: bool


def pages() -> list[Path]:
    """Return the pages, sorted."""
    return sorted(DOCS.rglob("*.md"))


def has_cells(page: Path) -> bool:
    """Return whether the page is a notebook: it loads the extension in a cell."""
    return any(cell.source.startswith("%load_ext gpumagic") for cell in cells(page)[0])


def cells(page: Path) -> tuple[list[Cell], str]:
    """Return the cells of a page, and the text behind the last one."""
    text = page.read_text(encoding="utf-8")
    found, end = [], 0
    for block in _BLOCK.finditer(text):
        fails = block[1] == "raises-exception"
        found.append(Cell(text[end : block.start()], block[2].rstrip("\n"), fails))
        end = block.end()
    return found, text[end:]


def as_notebook(page: Path) -> nbformat.NotebookNode:
    """Return the page as a notebook that is not executed yet."""
    import nbformat

    code, rest = cells(page)
    made: list[nbformat.NotebookNode] = []
    for number, cell in enumerate(code):
        if cell.before.strip():
            before = cell.before.strip()
            made.append(nbformat.v4.new_markdown_cell(before, id=f"text-{number}"))
        tags = {"tags": ["raises-exception"]} if cell.fails else {}
        made.append(nbformat.v4.new_code_cell(cell.source, id=f"cell-{number}", metadata=tags))
    if rest.strip():
        made.append(nbformat.v4.new_markdown_cell(rest.strip(), id="text-end"))
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    return nbformat.v4.new_notebook(cells=made, metadata={"kernelspec": kernel})
