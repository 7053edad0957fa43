"""Whether code uses a variable of the notebook, as far as that can be read; nothing is run."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from types import CodeType, FunctionType
from typing import Any


def line_that_sets(tree: ast.Module, name: str) -> int | None:
    """Return the line in which a cell gives the variable a value of its own before using it."""
    for statement in tree.body:
        if _names(statement, name):
            return None
        targets = statement.targets if isinstance(statement, ast.Assign) else []
        if any(isinstance(each, ast.Name) and each.id == name for each in targets):
            return statement.lineno
    return None


def may_use(tree: ast.Module, name: str, namespace: Mapping[str, Any]) -> bool:
    """Return whether a cell, or a function of the notebook that it may call, names the variable."""
    return _names(tree, name) or any(_mentions(code, name) for code in _codes(namespace))


def _names(tree: ast.AST, name: str) -> bool:
    """Return whether code reads the variable, or has its name in a text, which may be code."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            is_named = node.id == name and not isinstance(node.ctx, ast.Store)
        elif isinstance(node, ast.AugAssign):
            is_named = isinstance(node.target, ast.Name) and node.target.id == name
        else:
            is_named = isinstance(node, ast.Constant) and name in str(node.value)
        if is_named:
            return True
    return False


def _codes(namespace: Mapping[str, Any]) -> Iterator[CodeType]:
    """Yield the code of the functions and classes that the notebook has defined."""
    for value in [*namespace.values()]:
        inner = [*type.__getattribute__(value, "__dict__").values()] if type(value) is type else []
        for each in [value, *inner]:
            while type(each) in (staticmethod, classmethod):
                each = each.__func__
            if type(each) is FunctionType and each.__globals__ is namespace:
                yield each.__code__


def _mentions(code: CodeType, name: str) -> bool:
    if name in code.co_names:
        return True
    return any(
        _mentions(each, name) if isinstance(each, CodeType) else type(each) is str and name in each
        for each in code.co_consts
    )
