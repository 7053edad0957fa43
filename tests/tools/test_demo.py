"""The notebooks run from top to bottom on any machine, and are committed without outputs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.tools.demo.runner import (
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
COSTLY = {"04_many_gpus.ipynb": 1, "05_share_a_gpu.ipynb": 3}


def code_cells(notebook: nbformat.NotebookNode) -> Iterator[nbformat.NotebookNode]:
    return (cell for cell in notebook.cells if cell.cell_type == "code")


def test_each_notebook_is_known() -> None:
    assert [path.name for path in notebooks()] == list(MAGICS)


@pytest.mark.parametrize("path", notebooks(), ids=lambda path: path.stem)
def test_committed_without_outputs(path: Path) -> None:
    import nbformat

    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    for cell in code_cells(notebook):
        assert (cell.outputs, cell.execution_count) == ([], None)


@pytest.mark.parametrize(
    ("path", "devices"),
    [(p, devices) for p in notebooks() for devices in (0, 1, 3) if p.name not in COSTLY]
    + [(p, COSTLY[p.name]) for p in notebooks() if p.name in COSTLY],
    ids=lambda value: getattr(value, "stem", value),
)
def test_runs_on_any_number_of_gpus(path: Path, devices: int) -> None:
    """Every cell with one of our magics shows something, in HTML and in text.

    0 stands for a GPU whose memory NVML does not report.
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
    page = as_html(notebook, path.stem)
    assert 'class="gpumagic"' in page
    assert "virtual GPU" in page
