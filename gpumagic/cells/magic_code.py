"""What a magic's code, a string in the Python code of the cell, needs of IPython."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from contextlib import suppress
from textwrap import dedent
from typing import Any

from IPython.core.magic import MagicAlias

from gpumagic.cells.compile import source_awaits
from gpumagic.cells.semicolon import take_semicolon
from gpumagic.errors import SpecError
from gpumagic.system.shell import Shell

#: A call of a magic, on a line of its own, as IPython writes it.
_CALL = re.compile(r"\s*get_ipython\(\)\.run_(line|cell)_magic\('([^']+)',")


def prepare_call(
    lines: list[str],
    shell: Shell,
    source: Callable[[str, str, str | None], str | None],
    ours: object,
) -> list[str]:
    """Return a cell's lines, as IPython has transformed them, for a call of our magics at its end.

    - ``await`` is put before the call of a cell magic whose code awaits: IPython runs a cell in
      its event loop only if the cell's own code awaits. For such code the magic returns a
      coroutine (`CompiledCell.run_within`).
    - The call ends with ``;`` if the magic's code ends so: the value of ``-o`` is not displayed,
      but can be assigned.
    - A syntax error in the magic's code is raised as one of the cell: IPython shows the line
      without a traceback, and nothing runs.

    ``source(name, line, cell)`` is the code that a magic runs in this process, or None. ``ours`` is
    the object of our magics: the user may have registered another one of the same name since, and
    other names for ours.
    """
    call = _CALL.match(lines[-1]) if lines else None
    written = _strings(lines[-1]) if call else []
    if call is None or len(written) not in (2, 3):
        return lines
    magics, (kind, name) = shell.magics_manager.magics, call.groups()
    line, cell = written[1], written[2] if len(written) == 3 else None
    function = magics[kind].get(name)
    if isinstance(function, MagicAlias):
        name, line = function.magic_name, f"{function.magic_params or ''} {line}".strip()
        function = magics[function.magic_kind].get(name)
    if getattr(function, "__self__", None) is not ours:
        return lines
    last = lines[-1].rstrip()
    header = None if cell is None else f"%%{name} {line}"
    with suppress(SpecError):  # the magic reports it
        code = source(name, line, cell)
        if code is not None and source_awaits(shell, code, header) and cell is not None:
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
