"""The pages of ``docs/``: Markdown whose ``python`` blocks are the cells of a notebook.

The cells of a page run in one kernel, from top to bottom: by ``make site``, which shows what they
show, and by the tests. What a cell shows as text is the ``output`` block below it, written by
``make notebooks``. A block that begins with ```` ```python raises-exception ```` is meant to fail,
one with ```` ```python varies ```` shows other words in another run; blocks of any other language
are not executed.
"""

from __future__ import annotations

import re
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tests.support.kernels import ROOT
from tests.tools.demo.runner import VIRTUAL_NOTE

if TYPE_CHECKING:  # nbformat takes a second of CPU time to import
    import nbformat

DOCS = ROOT / "docs"
#: README in Chinese: its cells are README's, and are executed there.
CHINESE = DOCS / "zh.md"
_BLOCK = re.compile(
    r"^(?P<code>```python *(?P<tag>[\w-]*)\n(?P<source>.*?)^```$\n?)"
    r"(?:\n```output\n(?P<output>.*?)^```$\n?)?",
    re.MULTILINE | re.DOTALL,
)
_WIDTH = 80


class Cell(NamedTuple):
    """A cell of a page, and what is written above it."""

    before: str
    source: str
    #: ``"raises-exception"`` if it is meant to fail, ``"varies"``, or empty.
    tag: str
    #: What it shows, as text.
    output: str


def pages() -> list[Path]:
    """Return the pages, sorted."""
    return sorted(DOCS.rglob("*.md"))


def has_cells(page: Path) -> bool:
    """Return whether the page is a notebook: it loads the extension in a cell."""
    if page == CHINESE:
        return False
    return any(cell.source.startswith("%load_ext gpumagic") for cell in cells(page)[0])


def cells(page: Path) -> tuple[list[Cell], str]:
    """Return the cells of a page, and the text behind the last one."""
    # A notebook that is executed on a virtual GPU says so anyway.
    text = page.read_text(encoding="utf-8").replace(f"{VIRTUAL_NOTE}\n\n", "")
    found, end = [], 0
    for block in _BLOCK.finditer(text):
        source, output = block["source"].rstrip("\n"), block["output"] or ""
        found.append(Cell(text[end : block.start()], source, block["tag"], output))
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
        tags = {"tags": [cell.tag]} if cell.tag else {}
        made.append(nbformat.v4.new_code_cell(cell.source, id=f"cell-{number}", metadata=tags))
    if rest.strip():
        made.append(nbformat.v4.new_markdown_cell(rest.strip(), id="text-end"))
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    return nbformat.v4.new_notebook(cells=made, metadata={"kernelspec": kernel})


def shown(cell: nbformat.NotebookNode) -> str:
    """Return what an executed cell shows, as the text of an ``output`` block.

    Of a traceback it is the last line. Warnings, and what else is written to stderr, are left out.
    """
    parts = []
    for output in cell.outputs:
        if output.output_type == "error":
            parts.append(f"{output.ename}: {output.evalue}")
        elif "data" in output:
            parts.append(output["data"].get("text/plain", ""))
        elif output.name == "stdout" or output.text.startswith("UsageError: "):
            parts.append(output.text)
    lines = [line.rstrip() for part in parts if part for line in part.rstrip("\n").split("\n")]
    wrapped = (textwrap.wrap(each, _WIDTH, subsequent_indent="  ") or [""] for each in lines)
    return "".join(f"{line}\n" for each in wrapped for line in each)


def with_outputs(page: Path, executed: nbformat.NotebookNode) -> str:
    """Return the page's text with what its cells have shown."""
    code = iter([cell for cell in executed.cells if cell.cell_type == "code"])

    def block(found: re.Match[str]) -> str:
        text = shown(next(code))
        return found["code"] + (f"\n```output\n{text}```\n" if text else "")

    return _BLOCK.sub(block, page.read_text(encoding="utf-8"))
