"""The code whose lines are to be traced: of a cell, and of functions by their names."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Sequence
from types import CodeType
from typing import Any, NamedTuple

_INLINE = {"<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>"}


class Source(NamedTuple):
    """Lines to be traced: of the cell, or of a function."""

    name: str
    codes: tuple[CodeType, ...]
    first: int
    lines: tuple[str, ...]


def cell_source(codes: Sequence[CodeType], text: str, first: int) -> Source:
    """The cell, whose first line has the number ``first``."""
    # As Python counts lines: `splitlines` knows more ends, which may stand in a string.
    lines = re.split(r"\r\n|\r|\n", text.rstrip("\r\n"))
    return Source("cell", tuple(codes), first, tuple(lines))


def function_source(name: str, function: Any) -> Source:
    """A function, method or module (its ``forward``), through decorators and ``partial``.

    Raises:
        ValueError: it has no Python code; the message is one line.
    """
    code = _code_of(function)
    if code is None:
        raise ValueError(f"{name} is no Python function: {type(function).__name__}")
    return code_source(name, code)


def code_source(name: str, code: CodeType) -> Source:
    """A function by its code."""
    try:
        lines, first = inspect.getsourcelines(code)
    except OSError:  # the file is gone, or the code was made from a string
        numbers = [line for _, _, line in code.co_lines() if line] or [code.co_firstlineno]
        first, lines = min(numbers), [""] * (max(numbers) - min(numbers) + 1)
    return Source(name, (code,), first, tuple(line.rstrip("\n") for line in lines))


def _code_of(function: Any) -> CodeType | None:
    for _ in range(100):  # a chain of wrappers may be a circle
        if isinstance(function, CodeType):
            return function
        for attribute in ("__wrapped__", "__func__", "func", "fget", "__code__", "forward"):
            inner = getattr(function, attribute, None)
            if inner is not None:
                function = inner
                break
        else:
            return None
    return None


def find_code(codes: Sequence[CodeType], name: str) -> CodeType | None:
    """The function ``name`` (``f``, ``Class.method``) that ``codes`` define."""
    head, _, rest = name.partition(".")
    for code in codes:
        for nested in code.co_consts:
            if isinstance(nested, CodeType) and nested.co_name == head:
                found = find_code([nested], rest) if rest else nested
                if found is not None:
                    return found
    return None


def with_inline(code: CodeType) -> Iterator[tuple[CodeType, bool]]:
    """The code and what runs in its lines: comprehensions and class bodies, at any depth."""
    yield code, False
    for nested in code.co_consts:
        if isinstance(nested, CodeType) and (
            nested.co_name in _INLINE or not nested.co_flags & inspect.CO_OPTIMIZED
        ):
            yield from ((each, True) for each, _ in with_inline(nested))
