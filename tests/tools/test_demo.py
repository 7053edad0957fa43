"""The notebooks run from top to bottom on any machine, and are committed with what they show."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.newest import IS_NEWEST, VERSIONS
from tests.tools.demo.committed import OURS, VARIES, without_empty_outputs, words
from tests.tools.demo.runner import (
    SOURCES,
    Machine,
    as_html,
    execute,
    notebooks,
    virtual_machine,
    without_memory_figures,
)

if TYPE_CHECKING:  # nbformat takes a second of CPU time to import
    import nbformat

#: Those for one GPU. The others share GPUs with other processes, which they start.
FOR_ONE = ("01_choose_gpus", "02_time_a_cell", "03_memory")
#: What names one machine: absolute paths, dates.
OF_ONE_MACHINE = re.compile(
    r"(?<![\w.:/])/(?:home|root|tmp|work|usr|opt|var|mnt|Users)/|site-packages|\d{4}-\d\d-\d\dT"
)


def code_cells(notebook: nbformat.NotebookNode) -> Iterator[nbformat.NotebookNode]:
    return (cell for cell in notebook.cells if cell.cell_type == "code")


@pytest.mark.parametrize("path", notebooks(), ids=lambda path: path.stem)
def test_committed_with_outputs(path: Path) -> None:
    """If this fails: ``make notebooks``."""
    import nbformat

    text = path.read_text(encoding="utf-8")
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    assert notebook.metadata.language_info == {"name": "python"}
    assert any(output.get("data") for cell in code_cells(notebook) for output in cell.outputs)
    assert not OF_ONE_MACHINE.search(text)
    assert notebook.cells[0].source.splitlines()[0].endswith("?")


@pytest.mark.parametrize("path", notebooks(), ids=lambda path: path.stem)
def test_shows_what_is_committed(path: Path) -> None:
    """The same words on the same machine; if not: ``make notebooks``."""
    import nbformat

    committed, notebook = nbformat.read(path, as_version=4), executed(path, virtual_machine())
    assert [cell.source for cell in committed.cells] == [cell.source for cell in notebook.cells]
    for cell, again in zip(code_cells(committed), code_cells(notebook), strict=True):
        if IS_NEWEST and VARIES not in cell.metadata.get("tags", []):
            assert words(cell) == words(again), f"{cell.source}\n{VERSIONS}"


@pytest.mark.parametrize("name", FOR_ONE)
def test_runs_on_one_gpu(name: str) -> None:
    """Whose memory, temperature and power NVML does not report."""
    executed(SOURCES / f"{name}.ipynb", without_memory_figures())


def executed(path: Path, machine: Machine) -> nbformat.NotebookNode:
    """The notebook, in which every cell with one of our magics shows something: HTML and text."""
    notebook = without_empty_outputs(execute(path, machine))
    ours = 0
    for cell in code_cells(notebook):
        meant_to_fail = "raises-exception" in cell.metadata.get("tags", [])
        failed = any(output.output_type == "error" for output in cell.outputs)
        assert failed == meant_to_fail, cell.source
        if OURS.match(cell.source):
            assert cell.outputs, f"{cell.source!r} shows nothing"
            displays = [each for each in cell.outputs if each.output_type == "display_data"]
            assert all({"text/html", "text/plain"} <= set(each.data) for each in displays)
            ours += 1
    assert ours >= 3
    page = as_html(notebook, path.stem)
    assert 'class="gpumagic ' in page
    assert "virtual GPU" in page
    return notebook
