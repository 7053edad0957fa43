"""The modules of the magics, each imported when it is first needed; and what runs their verbs."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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


def source(name: str, line: str, cell: str | None) -> str | None:
    """Return the code that a magic runs in this process; None if it runs none."""
    if name == "gpu":
        return cell
    parsed = grammar_of(name).read(line, cell=cell is not None)
    if parsed.verb or parsed.options.cluster:
        return None
    return cell or parsed.code or None


def run_verb(magics: Any, name: str, line: MagicLine) -> Any:
    """Run the verb of a line by its module, and return its result.

    The module's ``run(verb, magics, options, silent)`` does.
    """
    __tracebackhide__ = True
    module = import_module(f"gpumagic.magics.{name}.{options_module(name).VERBS[line.verb]}")
    return module.run(line.verb, magics, line.options, line.silent)
