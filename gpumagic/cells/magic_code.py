"""What a magic's code, a string in the Python code of the cell, needs of IPython."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from dataclasses import dataclass
from textwrap import dedent
from typing import Any

from IPython.core.magic import MagicAlias

from gpumagic.cells.compile import source_awaits
from gpumagic.cells.semicolon import take_semicolon
from gpumagic.errors import SpecError

#: A call of a magic, on a line of its own, as IPython writes it.
_CALL = re.compile(r"\s*get_ipython\(\)\.run_(line|cell)_magic\('([^']+)',")


@dataclass(frozen=True, eq=False)
class MagicCode:
    """An input transformer of IPython for the call of one of our magics that ends a cell.

    - It puts ``await`` before the call of a cell magic whose code awaits: IPython runs a cell in
      its event loop only if the cell's own code awaits. For such code the magic returns a
      coroutine (`CompiledCell.run_within`).
    - It ends the call with ``;`` if the magic's code ends so: the value of ``-o`` is not displayed,
      but can be assigned.
    - It raises a syntax error in the magic's code as one of the cell: IPython shows the line
      without a traceback, and nothing runs.

    ``source(name, line, cell)`` is the code that a magic runs in this process, or None.
    ``is_ours`` knows the functions of our magics: the user may have registered another one of the
    same name since, and other names for ours.
    """

    shell: Any
    source: Callable[[str, str, str | None], str | None]
    is_ours: Callable[[Any], bool]

    def __call__(self, lines: list[str]) -> list[str]:
        call = _CALL.match(lines[-1]) if lines else None
        named = call and self._named(*call.groups())
        if not named:
            return lines
        written = _strings(lines[-1])
        if len(written) not in (2, 3):
            return lines
        last = lines[-1].rstrip()
        name, line = named[0], f"{named[1]} {written[1]}".strip()
        cell = written[2] if len(written) == 3 else None
        if self._awaits(name, line, cell) and cell is not None:
            last = f"await {last}"
        if take_semicolon(dedent(written[-1]))[1]:
            last += ";"
        return [*lines[:-1], f"{last}\n"]

    def _named(self, kind: str, name: str) -> tuple[str, str] | None:
        """Return the magic of ours that has this name, or alias, and the alias's words, or None."""
        magics, words = self.shell.magics_manager.magics, ""
        function = magics[kind].get(name)
        if isinstance(function, MagicAlias):
            name, words = function.magic_name, function.magic_params or ""
            function = magics[function.magic_kind].get(name)
        return (name, words) if self.is_ours(function) else None

    def _awaits(self, name: str, line: str, cell: str | None) -> bool:
        header = None if cell is None else f"%%{name} {line}"
        try:
            source = self.source(name, line, cell)
            return source is not None and source_awaits(self.shell, source, header)
        except SpecError:
            return False  # the magic reports it


def _strings(call: str) -> list[str]:
    """Return the arguments of a call; none if they are not all strings, written there."""
    try:
        node: Any = ast.parse(call.strip(), mode="eval").body
        values = [] if node.keywords else [*map(ast.literal_eval, node.args)]
    except (SyntaxError, ValueError, TypeError, AttributeError):
        return []  # IPython reports it, or it is more than a call
    return values if all(isinstance(value, str) for value in values) else []
