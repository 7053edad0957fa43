"""Calls of magics in the Python code that IPython makes of a cell."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TypeGuard, cast

#: The line magics that run a statement.
LINE_MAGICS = ("cudatime", "gpumem")


def written_strings(call: ast.expr) -> list[str] | None:
    """Return the arguments of a call; None if they are not all strings, written there."""
    if not isinstance(call, ast.Call) or call.keywords:
        return None
    values = [each.value if isinstance(each, ast.Constant) else None for each in call.args]
    strings = [each for each in values if isinstance(each, str)]
    return strings if len(strings) == len(values) else None


def line_calls(node: ast.AST) -> Iterator[ast.Call]:
    """Yield the calls of our line magics where ``await`` is allowed and missing."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.FunctionDef, ast.ClassDef, ast.Lambda)):
            continue
        if isinstance(child, ast.Await):
            child = child.value
        elif is_line_call(child):
            yield child
        yield from line_calls(child)


def is_line_call(node: ast.AST) -> TypeGuard[ast.Call]:
    return (
        isinstance(node, ast.Call)
        and ast.unparse(node.func) == "get_ipython().run_line_magic"
        and len(node.args) == 2
        and all(isinstance(a, ast.Constant) and isinstance(a.value, str) for a in node.args)
        and cast(ast.Constant, node.args[0]).value in LINE_MAGICS
    )
