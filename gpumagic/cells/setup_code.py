"""The setup of repeated runs, parsed with its place on the magic's line."""

from __future__ import annotations

import ast
import re
from typing import Any


def parse_setup(shell: Any, setup: str, header: str | None, name: str) -> ast.Module:
    """Return the setup's tree before the AST transformers, at its columns of the header.

    Without a header its lines are above the code.

    Raises:
        SyntaxError: it is no valid code, or valid only in a function.
    """
    __tracebackhide__ = True
    columns = [] if header is None else _columns(setup, header)
    try:
        tree: ast.Module = shell.compile.ast_parse(shell.transform_cell(setup), name)
    except SyntaxError as error:
        if header is not None and error.lineno is not None:
            _move_error(error, header, columns)
        raise
    if header is not None:
        before = [len(header[:column].encode()) for column in columns]
        for node in ast.walk(tree):
            _move(node, "lineno", "col_offset", before)
            _move(node, "end_lineno", "end_col_offset", before)
    shell.compile(tree, name, "exec")  # refuses what is valid only in a function
    return tree


def _columns(setup: str, header: str) -> list[int]:
    """Return where in the header each line of the setup is: that of ``-s``, and that at its end.

    The column is 0 where it is not found.
    """
    columns = []
    end = 0
    for line in setup.split("\n"):
        written = re.compile(rf"(?<=[\s'\"=s]){re.escape(line)}(?=['\"\s]|$)")
        found = written.search(header, end)
        columns.append(found.start() if found else 0)
        end = found.end() if found else end
    return columns


def _move_error(error: SyntaxError, header: str, columns: list[int]) -> None:
    before = columns[min(error.lineno or 1, len(columns)) - 1]
    error.lineno, error.offset, error.text = 1, (error.offset or 0) + before, header
    if error.end_offset is not None and error.end_offset > 0:  # -1: not known
        before = columns[min(error.end_lineno or 1, len(columns)) - 1]
        error.end_lineno, error.end_offset = 1, error.end_offset + before


def _move(node: ast.AST, line: str, column: str, before: list[int]) -> None:
    number = getattr(node, line, None)
    if number is not None and number <= len(before):
        setattr(node, line, 1)
        setattr(node, column, getattr(node, column) + before[number - 1])
