"""The names of the magics, the forms of their lines, and the code that a line runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpumagic.magics.parsing import Grammar

MAGICS = ("gpu", "cudatime", "gpumem")


def grammar_of(name: str) -> Grammar:
    """Return the forms of a magic's line.

    This imports nothing that measures, restarts or draws: completion needs it at a key press.
    """
    if name == "gpu":
        from gpumagic.magics.gpu.gpu_options import grammar
    elif name == "cudatime":
        from gpumagic.magics.cudatime.cudatime_options import grammar
    else:
        from gpumagic.magics.gpumem.gpumem_options import grammar
    return grammar()


def source(name: str, line: str, cell: str | None) -> str | None:
    """Return the code that a magic runs in this process; None if it runs none."""
    if name == "gpu":
        return cell
    grammar = grammar_of(name)
    parsed = grammar.read(line, cell=cell is not None)
    if cell is None:
        grammar.check_statement(parsed.code)  # what is no error has nothing to await
    if parsed.verb or parsed.options.cluster:
        return None
    return cell or parsed.code or None
