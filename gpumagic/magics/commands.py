"""The modules of the magics, each imported when it is first needed; and what runs their verbs."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpumagic.cells.compile import MagicSource
    from gpumagic.magics.parsing import Grammar, MagicLine

MAGICS = ("gpu", "cudatime", "gpumem")


def options_module(name: str) -> Any:
    """Return the module with ``grammar()`` and ``HELP`` of a magic.

    It imports nothing that measures, restarts or draws: completion needs it at a key press.
    """
    return import_module(f"gpumagic.magics.{name}.options")


def command_module(name: str) -> Any:
    """Return the module with ``run()`` of a magic."""
    return import_module(f"gpumagic.magics.{name}.command")


def grammar_of(name: str) -> Grammar:
    """Return the forms of a magic's line."""
    found: Grammar = options_module(name).grammar()
    return found


def source(name: str, line: str, cell: str | None) -> MagicSource | None:
    """Return the code that a magic runs in this process; None if it runs none."""
    from gpumagic.cells.compile import MagicSource

    if name == "gpu":
        return None if cell is None else MagicSource(cell)
    parsed = grammar_of(name).read(line, cell=cell is not None)
    if parsed.verb or parsed.options.cluster or (cell is None and not parsed.code):
        return None
    code, above = (parsed.code, "") if cell is None else (cell, parsed.code)
    if name == "gpumem":
        return MagicSource(code)
    from gpumagic.magics.cudatime.options import REPEATING
    from gpumagic.magics.cudatime.repeat_options import setup_code

    if REPEATING.isdisjoint(parsed.given):
        return MagicSource(code)
    return MagicSource(code, setup_code(parsed.options, above), is_repeated=True)


def run_verb(magics: Any, name: str, line: MagicLine) -> Any:
    """Run the verb of a line by its module, and return its result.

    The module's ``run(verb, magics, options, silent)`` does.
    """
    __tracebackhide__ = True
    module = import_module(f"gpumagic.magics.{name}.{options_module(name).VERBS[line.verb]}")
    return module.run(line.verb, magics, line.options, line.silent)
