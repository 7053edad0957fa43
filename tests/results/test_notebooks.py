"""The table of the user's notebooks on the machine."""

from __future__ import annotations

from gpumagic.results.notebooks import Notebook, NotebookTable, Shutdown

GIB = 2**30


def test_the_table() -> None:
    table = NotebookTable(
        (
            Notebook("train.ipynb", "train.ipynb", "/home/ann", 11, {0: GIB, 1: GIB}, 0.0, True),
            Notebook("eval.ipynb", "eval.ipynb", "/home/ann", 12, {2: None}, 7200.0),
            Notebook("idle.ipynb"),
        )
    )
    lines = str(table).splitlines()
    assert lines[2].split() == [
        *("train.ipynb", "(this", "one)", "/home/ann", "11", "0–1", "2.00", "GiB", "busy")
    ]
    assert lines[3].split() == ["eval.ipynb", "/home/ann", "12", "2", "–", "idle", "2", "h"]
    assert lines[4].split() == ["idle.ipynb", "–", "–", "–", "none", "–"]
    assert lines[-1] == "Shut one down, and lose its variables: %gpu shutdown NAME"
    assert table[1].memory is None, "of one GPU it is not known"
    assert repr(table) == "<NotebookTable: 3 notebooks>"


def test_none() -> None:
    assert str(NotebookTable()) == "None of your notebooks was found on this machine."


def test_a_shutdown() -> None:
    notebook = Notebook("eval.ipynb", devices={0: GIB})
    assert str(Shutdown(notebook, True)) == (
        "eval.ipynb was shut down by its server; it held 1.00 GiB of GPU memory."
    )
    assert str(Shutdown(notebook, False)) == "eval.ipynb was not shut down."
