"""The plan that every engine runs: a cell, its magic, and the magic's options."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gpumagic.errors import SpecError


@dataclass(frozen=True)
class CellPlan:
    """A cell, or a statement, and the magic under which every engine runs it."""

    #: ``cudatime`` or ``gpumem``.
    magic: str
    code: str
    #: By option, as the magic's help writes it (``-n``, ``--precision``), the parsed value.
    options: Mapping[str, Any] = field(default_factory=dict)
    #: Code on the magic's line above a cell.
    setup: str = ""
    #: Whether ``code`` is the statement of a line magic.
    is_statement: bool = False

    @property
    def runs_equally_often(self) -> bool:
        """Whether the number of runs is the same on every engine."""
        if self.options.keys() & {"--precision", "--max-time", "--queued", "--kernels"}:
            return False
        counts = {"-n", "-r", "-w"}
        if counts <= self.options.keys():
            return True
        return not self.options.keys() & {*counts, "-s", "--repeat", "--cold"}

    def arguments(self) -> tuple[str, str | None]:
        """Return the line and the cell with which to call the magic.

        Raises:
            SpecError: a value has both kinds of quotes.
        """
        written = [_written(name, value) for name, value in self.options.items()]
        if self.is_statement:
            return " ".join([*written, "--", self.code]), None
        return " ".join([*written, *(("--", self.setup) if self.setup else ())]), self.code

    @property
    def awaits(self) -> bool:
        """Whether the code awaits at its top level, and so needs the event loop."""
        if not re.search(r"\b(await|async)\b", self.code):
            return False
        from IPython.core.inputtransformer2 import TransformerManager

        try:
            source = TransformerManager().transform_cell(self.code)  # type: ignore[no-untyped-call]
            compiled = compile(source, "<cell>", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        except SyntaxError:  # the engine reports it
            return False
        return bool(compiled.co_flags & inspect.CO_COROUTINE)


def _written(name: str, value: Any) -> str:
    """Return an option as it is typed on a magic's line."""
    if value is True:
        return name
    # The parser of sizes and times takes no exponents.
    text = f"{value:.12f}".rstrip("0") if isinstance(value, float) else str(value)
    if re.fullmatch(r"[^\s'\";-][^\s;]*", text):
        return f"{name} {text}"
    quote = next((quote for quote in "'\"" if quote not in text), None)
    if quote is None:
        raise SpecError(f"{name} cannot be sent to engines with both kinds of quotes: {text}")
    return f"{name} {quote}{text}{quote}"
