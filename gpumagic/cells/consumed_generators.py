"""Generator expressions that the call which they are an argument of uses up: ``sum(… for …)``."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable, Iterator
from types import CodeType

#: Functions that use an iterator up, or drop it.
_CONSUMERS = frozenset(
    {
        "sum",
        "any",
        "all",
        "min",
        "max",
        "list",
        "tuple",
        "set",
        "frozenset",
        "dict",
        "sorted",
        "join",
    }
)


def consumed_lines(tree: ast.Module) -> frozenset[int]:
    """Return the lines at which only such generator expressions begin."""
    left: dict[int, int] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.GeneratorExp):
            left[node.lineno] = left.get(node.lineno, 0) + 1
        elif isinstance(node, ast.Call) and _name(node.func) in _CONSUMERS:
            for each in node.args:
                if isinstance(each, ast.GeneratorExp):
                    left[each.lineno] = left.get(each.lineno, 0) - 1
    return frozenset(line for line, number in left.items() if not number)


def _name(function: ast.expr) -> str | None:
    if isinstance(function, ast.Name):
        return function.id
    return function.attr if isinstance(function, ast.Attribute) else None


def consumed_codes(codes: Iterable[CodeType], lines: Collection[int]) -> Iterator[CodeType]:
    """Yield the code objects of those expressions at ``lines``, wherever in ``codes``."""
    for code in codes:
        nested = [each for each in code.co_consts if isinstance(each, CodeType)]
        for each in nested:
            if each.co_name == "<genexpr>" and each.co_firstlineno in lines:
                yield each
        yield from consumed_codes(nested, lines)
