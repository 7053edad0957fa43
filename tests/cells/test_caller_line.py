"""What is called in the line of a caller warns there, and has its globals."""

from __future__ import annotations

import sys
import warnings
from typing import Any

from gpumagic.cells.caller_line import call_in_line_of


def warn(text: str, *, category: type[Warning]) -> str:
    warnings.warn(text, category, stacklevel=2)
    return text.upper()


def test_a_warning_names_the_callers_line_and_is_registered_there() -> None:
    names: dict[str, Any] = {"__name__": "cell", "call": call_in_line_of, "warn": warn, "sys": sys}
    cell = "\n\nx = [call(sys._getframe(), warn, ['a'], {'category': UserWarning}) for i in 'ab']"
    with warnings.catch_warnings(record=True) as caught:
        warnings.resetwarnings()
        exec(compile(cell, "<cell>", "exec"), names)
    assert names["x"] == ["A", "A"]
    ((filename, line),) = [(each.filename, each.lineno) for each in caught]
    assert (filename, line) == ("<cell>", 3)
    assert "__warningregistry__" in names
