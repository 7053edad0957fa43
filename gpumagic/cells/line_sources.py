"""Find the code whose lines are to be traced: a cell's, and that of named functions."""

from __future__ import annotations

import ast
import builtins
import inspect
import linecache
import re
import tokenize
import warnings
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from pathlib import Path
from types import CodeType, FunctionType, MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from gpumagic.cells.consumed_generators import consumed_lines
from gpumagic.errors import SpecError
from gpumagic.system import introspection

if TYPE_CHECKING:
    from gpumagic.cells.compile import CompiledCell

_INLINE = {"<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>"}


class Inline(Enum):
    """How nested code runs: in the lines of the code around it, unless it is a function."""

    FUNCTION = 0
    #: A comprehension or generator expression.
    EXPRESSION = 1
    #: The body of a class, which has statements.
    BODY = 2

    def __bool__(self) -> bool:
        return self is not Inline.FUNCTION


class Source(NamedTuple):
    """The lines of the cell or of a function."""

    name: str
    codes: tuple[CodeType, ...]
    first: int
    lines: tuple[str, ...]
    #: For each further line of a statement, by number, the statement's first line.
    statements: Mapping[int, int] = MappingProxyType({})
    #: What a ``for`` statement loops over, by its first line.
    loops: Mapping[int, ast.expr] = MappingProxyType({})
    #: The lines of ``try`` statements, if they are known; None for a function.
    guarded: frozenset[int] | None = None
    #: Lines of which every generator expression is used up by the call that it is an argument of.
    consumed: frozenset[int] = frozenset()
    #: Why there is no text, where that needs to be said.
    note: str | None = None


def selected_sources(compiled: CompiledCell, functions: Iterable[str]) -> list[Source]:
    """Return the cell's lines, and those of the functions named with ``-f``.

    Raises:
        SpecError: there is no such function.
    """
    codes = [code for code in (compiled.body, compiled.last) if code is not None]
    cell = cell_source(codes, compiled.source, compiled.first_line, compiled.tree)
    found: dict[tuple[int, ...], Source] = {}
    for name in dict.fromkeys(functions):
        source = _named_source(name, codes, compiled)
        key = tuple(map(id, source.codes))
        same = found.get(key)  # by another name: its lines are traced once
        found[key] = source if same is None else same._replace(name=f"{same.name}, {name}")
    return [cell, *found.values()]


def _named_source(name: str, codes: Sequence[CodeType], compiled: CompiledCell) -> Source:
    try:
        source = defined_source(codes, name)
        return function_source(name, _value_of(name, compiled)) if source is None else source
    except ValueError as error:
        raise SpecError(f"-f {error}") from None


def _value_of(name: str, compiled: CompiledCell) -> Any:
    """Return the value of ``name``, which may have attributes, in the cell's namespaces.

    Raises:
        ValueError: it is not defined there; the message is one line.
    """
    head, *attributes = name.split(".")
    spaces = (compiled.locals, compiled.globals, vars(builtins))
    found: Any = next((space for space in spaces if head in space), None)
    if found is None:
        raise ValueError(f"{name}: there is no {head!r} here")
    found = found[head]
    for attribute in attributes:
        try:
            found = getattr(found, attribute)
        except AttributeError as error:
            raise ValueError(f"{name}: {error}") from None
    return found


def cell_source(
    codes: Sequence[CodeType], text: str, first: int, tree: ast.Module | None = None
) -> Source:
    """Return the cell, whose first line has the number ``first``; ``tree`` has the same numbers."""
    # As Python counts lines; `splitlines` also splits at separators that a string may contain.
    lines = re.split(r"\r\n|\r|\n", text.rstrip("\r\n"))
    if tree is None:
        return Source("cell", tuple(codes), first, tuple(lines))
    return Source(
        "cell",
        tuple(codes),
        first,
        tuple(lines),
        _continued(tree),
        _loops(tree),
        _guarded(tree),
        consumed_lines(tree),
    )


def function_source(name: str, function: Any) -> Source:
    """Return a function, method or module (its ``forward``), through decorators and ``partial``.

    Raises:
        ValueError: it has no Python code, or is a class; the message is one line.
    """
    if isinstance(function, type):
        inside: dict[str, Any] = {}
        for base in function.__mro__[-2::-1]:
            inside.update(vars(base))
        functions = [n for n, each in inside.items() if type(each) in _FUNCTION_TYPES]
        raise ValueError(_class_message(name, functions, own=vars(function)))
    code = _code_of(function)
    if code is None:
        kind = type(function)
        call = introspection.find(kind, "__call__")
        instead = f"; name {kind.__name__}.__call__" if type(call) is FunctionType else ""
        raise ValueError(f"{name} is no Python function: {kind.__name__}{instead}")
    return code_source(name, code)


#: The types of attributes that a class has for the functions in its body.
_FUNCTION_TYPES = (FunctionType, staticmethod, classmethod, property)
#: The functions of a class that its message names before others.
_FIRST = ("forward", "__call__", "__init__")
#: So many of them are named.
_NAMED = 6


def _class_message(name: str, functions: Sequence[str], own: Container[str] | None = None) -> str:
    """Return the message for a class where a function is needed: its own functions come first."""
    if not functions:
        return f"{name} is a class without Python functions"
    first = [each for each in _FIRST if each in functions]
    named = [each for each in (*first, *functions) if own is None or each in own]
    named = list(dict.fromkeys([*named, *first])) or list(functions)
    choice = ", ".join(f"{name}.{each}" for each in named[:_NAMED])
    more = f" and {len(named) - _NAMED} more" if len(named) > _NAMED else ""
    return f"{name} is a class; name one of its functions: {choice}{more}"


def code_source(name: str, code: CodeType) -> Source:
    """Return the lines of a function's code."""
    # Before Python 3.11 no instruction has the number of the line of ``def``.
    numbers = [code.co_firstlineno, *(line for _, _, line in code.co_lines() if line)]
    try:
        # From Python 3.13 on, all code compiled from strings would have the text of `python -c`.
        lines, first = inspect.getsourcelines(code) if code.co_filename != "<string>" else ([], 0)
    except (OSError, SyntaxError, tokenize.TokenError):  # removed, from a string, or other text
        lines, first = [], 0
    note = None
    if Path(code.co_filename).is_file() and not _is_in_file(code):
        lines = []
        path = code.co_filename
        note = f"no text of {name}: {path} has changed since it was imported; reload it"
    if not first <= min(numbers) <= max(numbers) < first + len(lines):  # the text is of other code
        first, lines = min(numbers), [""] * (max(numbers) - min(numbers) + 1)
    written = tuple(line.rstrip("\n") for line in lines)
    return Source(name, (code,), first, written, *_statements(written, first), note=note)


def _is_in_file(code: CodeType) -> bool:
    """Return whether the text of the code's file, as it is now, compiles to this code."""
    text = "".join(linecache.getlines(code.co_filename))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            now = compile(text, code.co_filename, "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return any(_is_same(code, each) for each in _all_codes(now))


def _all_codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from _all_codes(each)


def _is_same(code: CodeType, other: CodeType) -> bool:
    if code.co_name != other.co_name or len(code.co_consts) != len(other.co_consts):
        return False
    if code.co_firstlineno != other.co_firstlineno or [*code.co_lines()] != [*other.co_lines()]:
        return False
    if (code.co_code, code.co_names) != (other.co_code, other.co_names):
        return False
    return all(
        _is_same(a, b)
        if isinstance(a, CodeType) and isinstance(b, CodeType)
        else type(a) is type(b) and repr(a) == repr(b)
        for a, b in zip(code.co_consts, other.co_consts, strict=True)
    )


def _code_of(function: Any) -> CodeType | None:
    for _ in range(100):  # wrappers may refer to each other in a circle
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


def defined_source(codes: Sequence[CodeType], name: str) -> Source | None:
    """Return the function ``name`` (``f``, ``Class.method``) that ``codes`` define, or None.

    Raises:
        ValueError: it is a class; the message is one line.
    """
    code = find_code(codes, name)
    if code is None:
        return None
    if not code.co_flags & inspect.CO_OPTIMIZED:
        inside = (each for each in code.co_consts if isinstance(each, CodeType))
        functions = [each.co_name for each in inside if each.co_name not in _INLINE]
        raise ValueError(_class_message(name, functions))
    return code_source(name, code)


def find_code(codes: Sequence[CodeType], name: str) -> CodeType | None:
    """Return the code of the function or class ``name`` (``f``, ``Class.method``) in ``codes``."""
    head, _, rest = name.partition(".")
    for code in codes:
        for nested in code.co_consts:
            if isinstance(nested, CodeType) and nested.co_name == head:
                found = find_code([nested], rest) if rest else nested
                if found is not None:
                    return found
    return None


def with_inline(code: CodeType) -> Iterator[tuple[CodeType, Inline]]:
    """Yield the code and the code that runs in its lines: comprehensions, class bodies, nested."""
    yield code, Inline.FUNCTION
    for nested in code.co_consts:
        if not isinstance(nested, CodeType):
            continue
        how = Inline.EXPRESSION if nested.co_name in _INLINE else Inline.BODY
        if how is Inline.EXPRESSION or not nested.co_flags & inspect.CO_OPTIMIZED:
            yield from ((each, inner or how) for each, inner in with_inline(nested))


def _statements(lines: Sequence[str], first: int) -> tuple[dict[int, int], dict[int, ast.expr]]:
    """Return `_continued` and `_loops` of a function's lines; empty where they cannot be parsed."""
    text, before = "\n".join(lines), 1
    if text[:1].isspace():  # a method
        text, before = f"if 1:\n{text}", 2
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the code's were issued when it was compiled
            tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return {}, {}
    up = first - before
    return (
        {line + up: start + up for line, start in _continued(tree).items()},
        {line + up: iterated for line, iterated in _loops(tree).items()},
    )


def _continued(tree: ast.Module) -> dict[int, int]:
    """Return, for each further line of a statement, the statement's first line.

    Of a statement with a body, only the lines above the body are included. The first line of a
    function or a class with decorators is that of the first decorator.
    """
    found: dict[int, int] = {}
    for node in ast.walk(tree):
        if isinstance(node, (ast.stmt, ast.ExceptHandler)):
            first, head, last = _first(node), node.lineno, node.end_lineno or node.lineno
        elif isinstance(node, ast.match_case):
            first = head = node.pattern.lineno
            last = node.body[-1].end_lineno or head
        else:
            continue
        below = (_first(each) for each in ast.walk(node) if isinstance(each, ast.stmt))
        body = min((line for line in below if line > head), default=last + 1)
        body = max(body, _end_of_head(node) + 1)  # the body may begin on the head's last line
        found.update(dict.fromkeys(range(first + 1, body), first))
    for line, first in found.items():
        while first in found:
            first = found[first]
        found[line] = first
    return found


def _end_of_head(node: ast.AST) -> int:
    """Return the last line of what a statement has above its body."""
    head = (
        each
        for each in ast.iter_child_nodes(node)
        if not isinstance(each, (ast.stmt, ast.ExceptHandler, ast.match_case))
    )
    ends = (getattr(each, "end_lineno", None) or 0 for part in head for each in ast.walk(part))
    return max(ends, default=0)


def _first(node: ast.stmt | ast.ExceptHandler) -> int:
    """Return the first line of a statement, its decorators included."""
    decorators = getattr(node, "decorator_list", ())
    first: int = min([node.lineno, *(each.lineno for each in decorators)])
    return first


def _guarded(tree: ast.Module) -> frozenset[int]:
    """Return the lines of ``try`` statements, whose handlers may go on after an exception."""
    return frozenset(
        line
        for node in ast.walk(tree)
        if type(node).__name__ in ("Try", "TryStar")  # the latter from Python 3.11 on
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)  # type: ignore[attr-defined]
    )


def _loops(tree: ast.Module) -> dict[int, ast.expr]:
    """Return what statements take the next value of, by line.

    Those are ``for``, where its body is in lines of its own, and ``next(…)``, alone or assigned.
    """
    found = {}
    for node in ast.walk(tree):
        if isinstance(node, (ast.For, ast.AsyncFor)):
            if node.body[0].lineno > (node.iter.end_lineno or node.iter.lineno):
                found[node.lineno] = node.iter
        elif isinstance(node, (ast.Assign, ast.AnnAssign, ast.Expr)):
            call = node.value.value if isinstance(node.value, ast.Await) else node.value
            if isinstance(call, ast.Call) and call.args and _takes_next(call.func):
                found[node.lineno] = call.args[0]
    return found


def _takes_next(function: ast.expr) -> bool:
    return isinstance(function, ast.Name) and function.id in ("next", "anext")
