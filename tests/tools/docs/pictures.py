"""README.md's pictures: cells of the executed demo notebooks, photographed by a browser.

``make pictures``: by hand, since times differ a little every time. Needs Chromium.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from pathlib import Path

import nbformat

from tests.tools.demo.runner import RESULTS, SOURCES, as_html

PICTURES = SOURCES / "images"
#: Picture: notebook, and the cells that are in it, each by its beginning and its place among those
#: that begin so.
CELLS = {
    "gpu": ("01_choose_gpus", (("%gpu\n", 0), ("choice = %gpu auto", 0), ("%gpu off\n", -1))),
    "cudatime": ("02_time_a_cell", (("%%time\n", 0), ("%%cudatime\nfor _", 0))),
    "gpumem": ("03_memory", (("%gpumem vars\n", 0), ("kept = ", 0))),
}
_WIDTH = 900
_CROP = "<style>body{padding:4px 0 0 0!important} .jp-Notebook{padding:0!important}</style>"
_MEASURE = "<script>document.title = document.querySelector('main').scrollHeight</script>"


def take() -> list[Path]:
    """Take every picture, light and dark.

    Raises:
        FileNotFoundError: there is no Chromium, or the notebooks were not executed.
    """
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        raise FileNotFoundError("no chromium on the PATH")
    PICTURES.mkdir(exist_ok=True)
    return [
        _photograph(browser, _excerpt(notebook, chosen), PICTURES / f"{name}-{theme}.png", theme)
        for name, (notebook, chosen) in CELLS.items()
        for theme in ("light", "dark")
    ]


def _excerpt(name: str, chosen: tuple[tuple[str, int], ...]) -> nbformat.NotebookNode:
    """Return the chosen cells as a notebook, without tracebacks and what is said on stderr."""
    notebook = nbformat.read(RESULTS / f"{name}.ipynb", as_version=4)
    notebook.cells = [
        [cell for cell in notebook.cells if f"{cell.source}\n".startswith(beginning)][place]
        for beginning, place in chosen
    ]
    for cell in notebook.cells:
        cell.outputs = [
            each for each in cell.outputs if "data" in each or each.get("name") == "stdout"
        ]
    return notebook


def _photograph(browser: str, notebook: nbformat.NotebookNode, target: Path, theme: str) -> Path:
    page = as_html(notebook, target.stem, theme=theme).replace("</head>", f"{_CROP}</head>")
    page = page.replace("</body>", f"{_MEASURE}</body>")
    command = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "page.html")
        source.write_text(page, encoding="utf-8")
        shape = f"--window-size={_WIDTH},100"
        dom = _run([*command, shape, "--dump-dom", source.as_uri()])
        found = re.search(r"<title>(\d+)</title>", dom)
        assert found is not None, "the page did not say how high it is"
        shape = f"--window-size={_WIDTH},{int(found[1]) + 12}"
        _run([*command, shape, f"--screenshot={target}", source.as_uri()])
    return target


def _run(command: list[str]) -> str:
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout


if __name__ == "__main__":
    for picture in take():
        print(picture)
