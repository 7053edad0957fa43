"""What IPython references by itself, and how each of these references is deleted."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from gpumagic.memory.roots import (
    EXCEPTION,
    LAST,
    LOCAL,
    OUTPUT,
    RESULT,
    NotebookReferences,
)
from gpumagic.memory.walk import Name


class Value:
    pass


@pytest.fixture
def notebook(ip: Any) -> NotebookReferences:
    return NotebookReferences(ip)


def of(notebook: NotebookReferences, value: Any) -> dict[str, str]:
    """By name, the kinds of the roots that have ``value`` among their values."""
    found = [root for root in notebook.roots() if any(each is value for each in root.values)]
    return {root.name.name: root.name.kind for root in found}


def test_an_output_is_referenced_in_several_places(
    notebook: NotebookReferences, ip: Any, run_cell: Any
) -> None:
    number = ip.execution_count
    value = Value()
    ip.user_ns["value"] = value
    run_cell("value")
    assert of(notebook, value) == {f"Out[{number}]": OUTPUT, RESULT: OUTPUT, "_": OUTPUT}
    run_cell("1 + 1")
    assert of(notebook, value) == {f"Out[{number}]": OUTPUT, "__": OUTPUT}
    assert all(root.name.by_notebook for root in notebook.roots())


def test_failed_functions_are_the_users_innermost_first(
    notebook: NotebookReferences, ip: Any, run_cell: Any
) -> None:
    number = ip.execution_count
    run_cell(
        "def inner(a):\n    raise ValueError\n\ndef outer(b):\n    inner(b)\n\nouter([1])",
        raising=False,
    )
    names = [root.name.name for root in notebook.roots() if root.name.kind == LOCAL]
    assert names == [
        f"a (In[{number}] line 2 in inner)",
        f"b (In[{number}] line 5 in outer)",
    ]
    assert sys.last_value in notebook._exceptions()


def test_only_the_given_references_are_deleted(
    notebook: NotebookReferences, ip: Any, run_cell: Any
) -> None:
    number = ip.execution_count
    for _ in range(2):
        run_cell("object()")
    run_cell("1 / 0", raising=False)
    first = Name(f"Out[{number}]", OUTPUT, True)
    assert notebook.release([first]) is False
    assert number not in ip.user_ns["Out"]
    assert f"_{number}" not in ip.user_ns
    assert number + 1 in ip.user_ns["Out"]
    assert isinstance(sys.last_value, ZeroDivisionError)
    assert notebook.release([Name(LAST, EXCEPTION, True)]) is True
    assert not hasattr(sys, "last_value")
    assert notebook._exceptions() == []
