"""Parts of a syntax tree: arguments, names that are given a value, imports, lines of magics."""

from __future__ import annotations

import ast
import re
import string
import sys
import types
from collections.abc import Iterator
from typing import Any

from gpumagic.system import introspection

#: In place of an object that is not known.
UNKNOWN = object()


def arguments(arguments: ast.arguments) -> Iterator[ast.arg]:
    yield from (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
    yield from (each for each in (arguments.vararg, arguments.kwarg) if each is not None)


def defaults(arguments: ast.arguments) -> list[ast.expr]:
    return [*arguments.defaults, *(each for each in arguments.kw_defaults if each is not None)]


def call_arguments(decorators: list[ast.expr]) -> list[ast.expr]:
    calls = [each for each in decorators if isinstance(each, ast.Call)]
    return [v for call in calls for v in (*call.args, *(k.value for k in call.keywords))]


def bound_names(tree: ast.AST) -> Iterator[str]:
    """Yield each name as often as code, wherever in it, may give it a value."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            yield node.id
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            yield from (each.asname or each.name.partition(".")[0] for each in node.names)
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.ExceptHandler) or type(node).__name__ in ("MatchAs", "MatchStar"):
            yield from filter(None, [node.name])  # type: ignore[attr-defined]
        elif type(node).__name__ == "MatchMapping":
            yield from filter(None, [node.rest])  # type: ignore[attr-defined]


def expressions(line: str) -> Iterator[str]:
    """Yield the expressions that IPython evaluates in a magic's line: ``{n + 1}``, ``$n``."""
    try:
        for literal, field, spec, _ in string.Formatter().parse(line):
            yield from (name for name in re.findall(r"\$(\$?[\w.]+)", literal) if name[0] != "$")
            if field is not None:
                yield field
                yield from expressions(spec or "")
    except ValueError:  # IPython leaves the rest as it is
        return


def is_loaded(name: str) -> bool:
    """Return whether a module is loaded, with the packages that it is in."""
    parts = name.split(".")
    return all(
        introspection.is_a(sys.modules.get(".".join(parts[:end])), types.ModuleType)
        for end in range(1, len(parts) + 1)
    )


def imported_from(node: ast.ImportFrom, name: str) -> Any:
    """Return what ``from module import name`` gives, where that runs no code."""
    module = node.module or ""
    if node.level or not is_loaded(module):
        return UNKNOWN
    found = introspection.module_attributes(sys.modules[module])
    return found.get(name, sys.modules.get(f"{module}.{name}", UNKNOWN))
