"""Whether code uses a variable of the notebook, as far as that can be read; nothing is run."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from types import CodeType, FunctionType
from typing import Any

#: Code that runs in a scope of its own, perhaps later.
_SCOPES = (ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def line_that_sets(tree: ast.Module, name: str) -> int | None:
    """Return the line in which a cell gives the variable a value of its own before using it.

    What it does under a condition does not count.
    """
    return next(_first_uses(tree.body, name), None)


def _first_uses(nodes: list[Any], name: str) -> Iterator[int | None]:
    """Yield, in the order of execution, the line for each change of the variable, None for a use.

    At least up to the first one.
    """
    for node in nodes:
        if isinstance(node, _SCOPES):
            if _names(node, name):
                yield None
            yield from (each.target.lineno for each in _walrus(node, name))
        elif isinstance(node, _FUNCTIONS):
            if node.name == name:
                yield node.lineno
            elif _names(node, name):
                yield None
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            bound = [each.asname or each.name.partition(".")[0] for each in node.names]
            if name in bound:
                yield node.lineno
        elif isinstance(node, ast.Name) and node.id == name:
            yield node.lineno if isinstance(node.ctx, ast.Store) else None
        elif isinstance(node, ast.Constant) and _is_in_text(node, name):
            yield None
        else:
            yield from _within(node, name)


def _within(node: ast.AST, name: str) -> Iterator[int | None]:
    """Yield as `_first_uses` for the parts of a node."""
    always, perhaps = _parts(node)
    yield from _first_uses(always, name)
    if any(_names(each, name) for each in perhaps):
        yield None


def _parts(node: ast.AST) -> tuple[list[Any], list[Any]]:
    """Return the parts of a node in the order of execution, and those that run conditionally."""
    if isinstance(node, (ast.Assign, ast.AnnAssign)):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        # Without a value an annotation sets nothing.
        return ([], []) if node.value is None else ([node.value, *targets], [])
    if isinstance(node, (ast.NamedExpr, ast.AugAssign)):
        return [node.value, node.target], []
    if isinstance(node, (ast.For, ast.AsyncFor)):
        return [node.iter, node.target, *node.body], node.orelse
    if isinstance(node, (ast.If, ast.IfExp, ast.While)):
        body = node.body if isinstance(node.body, list) else [node.body]
        rest = node.orelse if isinstance(node.orelse, list) else [node.orelse]
        return [node.test], [*body, *rest]
    if isinstance(node, ast.BoolOp):
        return node.values[:1], node.values[1:]
    if isinstance(node, ast.Match):
        return [node.subject], node.cases
    if isinstance(node, ast.ExceptHandler):
        return [], [node]
    if isinstance(node, ast.Try) or type(node).__name__ == "TryStar":
        found: Any = node
        return [*found.body], [*found.handlers, *found.orelse, *found.finalbody]
    return [*ast.iter_child_nodes(node)], []


def _walrus(node: ast.AST, name: str) -> Iterator[ast.NamedExpr]:
    """Yield the assignment expressions in a comprehension, which set the variable outside it."""
    if not isinstance(node, ast.Lambda):
        for each in ast.walk(node):
            if isinstance(each, ast.NamedExpr) and each.target.id == name:
                yield each


def may_use(tree: ast.Module, name: str, namespace: Mapping[str, Any]) -> bool:
    """Return whether a cell, or a function of the notebook that it may call, names the variable."""
    return _names(tree, name) or any(_mentions(code, name) for code in _codes(namespace))


def _is_in_text(node: ast.Constant, name: str) -> bool:
    """Return whether a text, which may be code, has the name in it."""
    return isinstance(node.value, (str, bytes)) and name in str(node.value)


def _names(tree: ast.AST, name: str) -> bool:
    """Return whether code reads the variable, or has its name in a text, which may be code."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            is_named = node.id == name and not isinstance(node.ctx, ast.Store)
        elif isinstance(node, ast.AugAssign):
            is_named = isinstance(node.target, ast.Name) and node.target.id == name
        else:
            is_named = isinstance(node, ast.Constant) and _is_in_text(node, name)
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
