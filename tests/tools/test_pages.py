"""The pages of the site: their links, their place in the navigation, and what their cells show."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import gpumagic
import gpumagic.cluster
from tests.support.newest import IS_NEWEST, VERSIONS
from tests.tools.demo.committed import OURS, VARIES, words_in
from tests.tools.demo.runner import VIRTUAL_NOTE, execute, virtual_machine
from tests.tools.docs.pages import CHINESE, DOCS, as_notebook, cells, has_cells, pages, shown
from tests.tools.docs.pictures import PICTURES
from tests.tools.docs.reference import README
from tests.tools.docs.site import OTHER_PAGES

TEXTS = {page: page.read_text(encoding="utf-8") for page in pages()}
#: A page, or README, and what a link in it may name.
PROSE = {
    page: re.sub(r"^```.*?^```$", "", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    for page in (README, *TEXTS)
}
_LINK = re.compile(r'(?:\]\(|src="|srcset=")(?!https?://)([^)\s"]+)')


def anchors(page: Path) -> set[str]:
    """The names by which the headings of a page can be linked to, as GitHub and MyST make them."""
    titles = re.findall(r"^#{1,6} (.+)$", PROSE[page], re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PROSE, ids=lambda page: str(page.relative_to(README.parent)))
def test_links(page: Path) -> None:
    for target in _LINK.findall(PROSE[page]):
        name, _, anchor = target.partition("#")
        found = (page.parent / name).resolve() if name else page
        assert found.is_file(), target
        if anchor:
            assert anchor in anchors(found), target
        if page == README:
            continue
        if found.suffix == ".ipynb":
            assert found in OTHER_PAGES.values(), target
        elif found == README:
            assert page == CHINESE, f"{target} is not in the site"
        elif found.suffix == ".png":
            assert found.parent == PICTURES, f"{target} is not in the site"
        else:
            assert found in TEXTS, f"{target} is not in the site"


def test_every_page_is_in_the_navigation_once() -> None:
    found: list[str] = []
    for page, text in TEXTS.items():
        for tree in re.findall(r"^```\{toctree\}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
            for line in tree.splitlines():
                if line and not line.startswith(":"):
                    found += entries(page.parent, line)
    names = [page.relative_to(DOCS).as_posix() for page in pages()] + [*OTHER_PAGES]
    expected = [name.rpartition(".")[0] for name in names]
    assert sorted(found) == sorted({*expected} - {"index"})


def entries(folder: Path, line: str) -> list[str]:
    name = (folder / line).relative_to(DOCS).as_posix()
    if not name.endswith("*"):
        return [name]
    others = [other.rpartition(".")[0] for other in OTHER_PAGES]
    return [other for other in others if other.startswith(name[:-1])]


def test_every_public_name_is_in_the_reference() -> None:
    text = TEXTS[DOCS / "reference" / "python.md"]
    _, own, of_cluster = text.split(".. currentmodule:: ")
    for module, section in ((gpumagic, own), (gpumagic.cluster, of_cluster)):
        documented = re.findall(r"^\.\. auto\w+:: (\w+)$", section, re.MULTILINE)
        assert len(documented) == len({*documented})
        # gpumagic.cluster, a public name too, is the second section
        assert {*documented} == {*module.__all__} - {"__version__", "cluster"}


#: Its cells compare times, and may fail by them: by the virtual clock, in this process.
BY_THE_CLOCK = DOCS / "howto" / "guard-in-ci.md"


@pytest.mark.parametrize(
    "page",
    [page for page in pages() if has_cells(page) and page != BY_THE_CLOCK],
    ids=lambda page: page.stem,
)
def test_the_cells_of_a_page(page: Path, tmp_path: Path) -> None:
    """They show what is written below them; if not: ``make notebooks``."""
    assert VIRTUAL_NOTE in TEXTS[page]
    notebook = execute(as_notebook(page), virtual_machine(), folder=tmp_path)
    executed = [cell for cell in notebook.cells if cell.cell_type == "code"]
    for cell, now in zip(cells(page)[0], executed, strict=True):
        failed = any(output.output_type == "error" for output in now.outputs)
        said = "".join(o.text for o in now.outputs if o.get("name") == "stderr")
        if cell.tag == "raises-exception":
            assert failed or said.startswith("UsageError: "), cell.source
        else:  # the reply of a cell that fails is an error, which ends the execution
            assert all("GpuMagicWarning" in line for line in said.splitlines()), said
        assert cell.output or not OURS.match(cell.source), f"{cell.source} shows nothing"
        if IS_NEWEST and cell.tag != VARIES:
            assert words_in(cell.output) == words_in(shown(now)), f"{cell.source}\n{VERSIONS}"


def test_the_cells_that_compare_times(
    clock: None, run_cell: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for cell in cells(BY_THE_CLOCK)[0]:
        reply = run_cell(cell.source, raising=False)
        assert bool(reply.error) == (cell.tag == "raises-exception"), cell.source
        assert reply.error or reply.text or reply.stdout or not OURS.match(cell.source), cell.source
