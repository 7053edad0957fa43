"""The functions that ``-f`` names, of ``%%cudatime --lines`` and ``%%gpumem --lines``."""

from __future__ import annotations

import builtins
import dis
from collections.abc import Sequence

from gpumagic.cells.compile import CompiledCell
from gpumagic.cells.line_sources import Source, find_code, selected_sources
from gpumagic.errors import SpecError


def sources(cell: CompiledCell, names: Sequence[str]) -> list[Source]:
    """Return the cell's lines, and those of the functions with these names.

    Raises:
        SpecError: there is no such function before the cell runs, and it defines none.
    """
    codes = [code for code in (cell.body, cell.last) if code is not None]
    spaces = (cell.locals, cell.globals, vars(builtins))
    for name in names:
        head = name.partition(".")[0]
        is_known = find_code(codes, name) is not None or any(head in space for space in spaces)
        if not is_known and _is_set_by(cell, head):
            raise SpecError(
                f"-f {name}: {head!r} is not there before this cell runs; define it in an "
                "earlier cell"
            )
    return selected_sources(cell, names)


def _is_set_by(cell: CompiledCell, name: str) -> bool:
    """Return whether a cell sets a variable: by an assignment, an import, a loop."""
    codes = [code for code in (cell.body, cell.last) if code is not None]
    return any(
        step.opname in ("STORE_NAME", "STORE_GLOBAL") and step.argval == name
        for code in codes
        for step in dis.get_instructions(code)
    )
