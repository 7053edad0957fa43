"""The notebooks run from top to bottom on any machine, and are committed with what they show."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.tools.demo.committed import VARIES, words
from tests.tools.demo.runner import (
    VIRTUAL_DEVICES,
    as_html,
    execute,
    notebooks,
    virtual_machine,
    without_memory_figures,
)

if TYPE_CHECKING:  # nbformat takes a second of CPU time to import
    import nbformat

MAGICS = {
    "01_choose_gpus.ipynb": ("%gpu", "%%gpu"),
    "02_time_a_cell.ipynb": ("%cudatime", "%%cudatime"),
    "03_memory.ipynb": ("%gpumem", "%%gpumem"),
    "04_many_gpus.ipynb": ("%gpu", "%%cudatime", "%%gpumem"),
    "05_share_a_gpu.ipynb": ("%gpu", "%gpumem", "%%gpumem"),
}
#: Those that start other processes, each of which imports torch: on one machine only.
COSTLY = ("04_many_gpus.ipynb", "05_share_a_gpu.ipynb")
#: What names one machine: absolute paths, dates.
OF_ONE_MACHINE = re.compile(
    r"(?<![\w.:/])/(?:home|root|tmp|work|usr|opt|var|mnt|Users)/|site-packages|\d{4}-\d\d-\d\dT"
)


def code_cells(notebook: nbformat.NotebookNode) -> Iterator[nbformat.NotebookNode]:
    return (cell for cell in notebook.cells if cell.cell_type == "code")


def test_each_notebook_is_known() -> None:
    assert [path.name for path in notebooks()] == list(MAGICS)


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


@pytest.mark.parametrize(
    ("path", "devices"),
    [(p, devices) for p in notebooks() for devices in (0, 1) if p.name not in COSTLY]
    + [(p, VIRTUAL_DEVICES) for p in notebooks()],
    ids=lambda value: getattr(value, "stem", value),
)
def test_runs_on_any_number_of_gpus(path: Path, devices: int) -> None:
    """Every cell with one of our magics shows something, in HTML and in text.

    0 stands for a GPU whose memory NVML does not report. On the machine of ``make notebooks`` the
    cells show what is committed.
    """
    from tests.support.notebooks import Client
    from tests.support.parking import CAN_PARK

    if not CAN_PARK and "%gpumem park" in path.read_text(encoding="utf-8"):
        pytest.skip("this torch cannot park memory")

    machine = virtual_machine(devices) if devices else without_memory_figures()
    notebook = execute(path, machine, client_class=Client)
    shown = 0
    for cell in code_cells(notebook):
        meant_to_fail = "raises-exception" in cell.metadata.get("tags", [])
        failed = any(output.output_type == "error" for output in cell.outputs)
        assert failed == meant_to_fail, cell.source
        first = cell.source.split(maxsplit=1)[0]
        if first in MAGICS[path.name] and "-q" not in cell.source:
            displays = [
                output
                for output in cell.outputs
                if output.output_type == "display_data"
                and output.data.get("text/plain") != ""  # a progress display that was removed
            ]
            printed = any(output.output_type == "stream" for output in cell.outputs)
            assert displays or printed, f"{cell.source!r} shows nothing"
            assert all({"text/html", "text/plain"} <= set(o.data) for o in displays)
            shown += 1
    assert shown >= 3
    if devices == VIRTUAL_DEVICES and CAN_PARK:  # older versions of torch word it otherwise
        compare_with_committed(path, notebook)
    page = as_html(notebook, path.stem)
    assert 'class="gpumagic"' in page
    assert "virtual GPU" in page


def compare_with_committed(path: Path, notebook: nbformat.NotebookNode) -> None:
    """Compare the words of each cell; if they differ: ``make notebooks``."""
    import nbformat

    committed = nbformat.read(path, as_version=4)
    assert [cell.source for cell in committed.cells] == [cell.source for cell in notebook.cells]
    for cell, again in zip(code_cells(committed), code_cells(notebook), strict=True):
        if VARIES not in cell.metadata.get("tags", []):
            assert words(cell) == words(again), cell.source


def test_the_words_of_a_cell() -> None:
    import nbformat

    table = "<div><table><tr><td>cuda:0</td><td>≤ 3.1 ms</td></tr></table></div>"
    note = "<div>at most: the GPU may have waited for Python in between</div>"
    outputs = [
        nbformat.v4.new_output("display_data", {"text/html": f"{table}{note}", "text/plain": "x"}),
        nbformat.v4.new_output("stream", name="stdout", text="1.5 GiB free &amp; 4 GPUs\n"),
        nbformat.v4.new_output("stream", name="stderr", text="a warning"),
    ]
    cell = nbformat.v4.new_code_cell("%gpu", outputs=outputs)
    assert words(cell) == {"cuda": 1, "free": 1, "&amp": 1, "GPUs": 1}
