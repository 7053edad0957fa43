"""``make site``: build the site from ``docs/`` and the executed notebooks, with no network.

Pages with cells are executed, on this machine's GPU or on a virtual one, and shown with what their
cells show. The sources are put together in ``build/site-source``, the site in ``build/site``.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.support.kernels import ROOT
from tests.tools.demo.committed import without_empty_outputs
from tests.tools.demo.runner import RESULTS, Machine, execute, notebooks, this_machine
from tests.tools.docs.pages import DOCS, as_notebook, has_cells, pages
from tests.tools.docs.pictures import PICTURES

SOURCE, SITE = ROOT / "build" / "site-source", ROOT / "build" / "site"
#: Pages of the site that do not lie in ``docs/``: what they are made from, in the repository.
OTHER_PAGES = {
    "changelog.md": ROOT / "CHANGELOG.md",
    **{f"notebooks/{path.name}": path for path in notebooks()},
}
#: A link to another page, and one to a demo notebook.
_TO_PAGE = re.compile(r"\]\(([\w./-]+)\.md\b")
_TO_NOTEBOOK = re.compile(r"\]\((?:\.\./)+demo_notebooks/")


def main() -> int:
    assemble(this_machine())
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html"]
    built = subprocess.run([*command, str(SOURCE), str(SITE)], check=False).returncode
    if not built:
        print(f"Look at {(SITE / 'index.html').relative_to(ROOT)} in a browser.")
    return built


def assemble(machine: Machine) -> None:
    """Write the sources of the site: pages with cells as executed notebooks."""
    import nbformat

    for folder in (SOURCE, SITE):
        shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(DOCS, SOURCE, ignore=shutil.ignore_patterns("*.md"))
    for page in pages():
        name = page.relative_to(DOCS)
        if has_cells(page):
            print(f"Executing docs/{name} on {machine.name}", flush=True)
            _execute(page, SOURCE / name.with_suffix(".ipynb"), machine)
        else:
            text = _linked(page.read_text(encoding="utf-8"), page)
            (SOURCE / name).write_text(text, encoding="utf-8")
    shutil.copytree(PICTURES, SOURCE / "notebooks" / PICTURES.name)
    for target, source in OTHER_PAGES.items():
        (SOURCE / target).parent.mkdir(exist_ok=True)
        if source.suffix == ".ipynb":
            executed = without_empty_outputs(nbformat.read(RESULTS / source.name, as_version=4))
            nbformat.write(executed, SOURCE / target)
        else:
            shutil.copy(source, SOURCE / target)


def _execute(page: Path, target: Path, machine: Machine) -> None:
    import nbformat

    notebook = as_notebook(page)
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            cell.source = _linked(cell.source, page)
    with tempfile.TemporaryDirectory() as folder:
        executed = execute(notebook, machine, folder=Path(folder))
    nbformat.write(without_empty_outputs(executed), target)


def _linked(text: str, page: Path) -> str:
    """Return a text of a page with its links as they are in the site."""

    def link(found: re.Match[str]) -> str:
        is_notebook = has_cells(page.parent / f"{found[1]}.md")
        return f"]({found[1]}.{'ipynb' if is_notebook else 'md'}"

    text = text.replace("](../README.md)", "](index.md)")  # the site's first page in English
    return _TO_NOTEBOOK.sub("](/notebooks/", _TO_PAGE.sub(link, text))


if __name__ == "__main__":
    sys.exit(main())
