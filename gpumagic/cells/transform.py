"""The source of a cell after IPython's input transformers."""

from __future__ import annotations

import re
import symtable
from collections.abc import Collection
from difflib import SequenceMatcher
from typing import Any

#: The name that a line begins with.
_FIRST_NAME = re.compile(r"(\s*)([^\W\d]\w*)")


def transformed_source(shell: Any, source: str, variables: Collection[str]) -> str:
    """Return the code after IPython's input transformers, its lines at their numbers.

    A single line that begins with the name of a line magic is a call of it (``%automagic``), unless
    the notebook has such a variable. IPython does not know the ``variables`` beside it, but does
    not look for magics in code of two lines. It removes the indentation that both have.
    """
    first = _FIRST_NAME.match(source)
    if first is None or first[2] not in variables or len(source.splitlines()) > 1:
        return _aligned(source, shell.transform_cell(source))
    lines = shell.transform_cell(f"{source.rstrip()}\n{first[1]}#\n").splitlines(keepends=True)
    return _aligned(source, "".join(lines[:-1]))


def bound_names(shell: Any, setup: str) -> set[str]:
    """Return the names that the setup binds; none if it is no valid code, which is said later."""
    try:
        table = symtable.symtable(shell.transform_cell(setup), "<setup>", "exec")
    except (SyntaxError, ValueError):
        return set()
    return {
        each.get_name() for each in table.get_symbols() if each.is_assigned() or each.is_imported()
    }


def _aligned(source: str, transformed: str) -> str:
    """Return ``transformed`` with a blank line for each line of ``source`` that it lacks.

    IPython removes blank lines above a cell, and joins a ``!`` or ``%`` line that a backslash
    continues; the line numbers below would be wrong.
    """
    before, after = (text.rstrip("\n").split("\n") for text in (source, transformed))
    if len(after) >= len(before):
        return transformed
    a, b = ([line.strip() for line in lines] for lines in (before, after))
    lines: list[str] = []
    for _, i, up_to_i, j, up_to_j in SequenceMatcher(None, a, b, autojunk=False).get_opcodes():
        lines += after[j:up_to_j] + [""] * ((up_to_i - i) - (up_to_j - j))
    return "\n".join(lines) + "\n"
