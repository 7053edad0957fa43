"""What a magic's code, a string in the Python code of the cell, needs of IPython."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from contextlib import suppress
from textwrap import dedent
from typing import Any

from gpumagic.cells.compile import source_awaits
from gpumagic.cells.semicolon import take_semicolon
from gpumagic.errors import SpecError
from gpumagic.system.shell import Shell

#: A call of a magic, on a line of its own, as IPython writes it.
_CALL = re.compile(r"\s*get_ipython\(\)\.run_(line|cell)_magic\('([^']+)',")
#: A call of a magic by a name with a ``;`` and nothing else, wherever it is: ``t = %gpumem;``.
_QUIET = re.compile(
    r"^([^'\"#]*get_ipython\(\)\.run_(line|cell)_magic\(')([^';]+);', '\s*'(?=[,)])", re.MULTILINE
)


def prepare_call(
    lines: list[str], shell: Shell, runs_here: Callable[[str, str], bool], ours: object
) -> list[str]:
    """Return a cell's lines, as IPython has transformed them, for calls of our magics.

    - ``%gpumem;`` is ``%gpumem ;``.
    - ``await`` is put before the call of a cell magic whose code awaits: IPython runs a cell in
      its event loop only if the cell's own code awaits. For such code the magic returns a
      coroutine (`CompiledCell.run_within`).
    - The call ends with ``;`` if the magic's code ends so: the value of ``-o`` is not displayed,
      but can be assigned.
    - A syntax error in a cell magic's code is raised as one of the cell: IPython shows the line
      without a traceback, and nothing runs.

    ``runs_here(name, line)`` is whether a cell magic runs its cell in this process. ``ours`` is
    the object of our magics: the user may have registered another one of the same name since.
    """
    if not any("_magic('" in line for line in lines):
        return lines

    def is_ours(kind: str, name: str) -> bool:
        function = shell.magics_manager.magics[kind].get(name)
        return getattr(function, "__self__", None) is ours

    def quieted(match: re.Match[str]) -> str:
        return f"{match[1]}{match[3]}', ';'" if is_ours(match[2], match[3]) else match[0]

    lines = [_QUIET.sub(quieted, line) for line in lines]
    call = _CALL.match(lines[-1])
    written = _strings(lines[-1]) if call and is_ours(*call.groups()) else []
    if len(written) not in (2, 3):
        return lines
    last = lines[-1].rstrip()
    if len(written) == 3:
        name, line = written[0], written[1].strip()
        with suppress(SpecError):  # the magic reports it
            if runs_here(name, line) and source_awaits(shell, written[2], f"%%{name} {line}"):
                last = f"await {last}"
    if take_semicolon(dedent(written[-1]))[1]:
        last += ";"
    return [*lines[:-1], f"{last}\n"]


def _strings(call: str) -> list[str]:
    """Return the arguments of a call; none if they are not all strings, written there."""
    try:
        node: Any = ast.parse(call.strip(), mode="eval").body
        values = [] if node.keywords else [*map(ast.literal_eval, node.args)]
    except (SyntaxError, ValueError, TypeError, AttributeError):
        return []  # IPython reports it, or it is more than a call
    return values if all(isinstance(value, str) for value in values) else []
