"""Each magic by its name: its command, the forms of its line, its help, where its cell runs."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from importlib import import_module
from inspect import cleandoc
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpumagic.magics.parsing import Grammar

MAGICS = ("gpu", "cudatime", "gpumem")
#: Columns of a terminal, and of the verbs and options on the left.
_WIDTH, _LEFT = 79, 30


def command_of(name: str) -> Any:
    """Return the module of a magic, which has `grammar` and `run`.

    This imports nothing that measures, restarts or draws: completion needs it at a key press.
    """
    return import_module(f"gpumagic.magics.{name}.{name}_command")


def grammar_of(name: str) -> Grammar:
    """Return the forms of a magic's line."""
    grammar: Grammar = command_of(name).grammar()
    return grammar


def runs_its_cell(name: str, line: str) -> bool:
    """Return whether a cell magic runs its cell in this process."""
    words, _, _ = grammar_of(name).take_options(line)
    return {"--cluster", "--help", "-h"}.isdisjoint(words)


# --- the help -------------------------------------------------------------------------------------


def page(name: str, text: str) -> str:
    """Return a magic's help: ``text``, and above its examples the verbs and the options."""
    text, heading, examples = cleandoc(text).partition("\n\nExamples\n")
    forms = grammar_of(name).forms.values()
    sections: dict[str, dict[str, str]] = {}
    for form in forms:
        for title, added in form.sections.items():
            sections.setdefault(title, {}).update(added)
    sections["result"] = sections.pop("result")  # each form's first one
    verbs = _rows((form.written, form.about) for form in forms if form.about)
    options = [line for title, rows in sections.items() for line in (title, *_rows(rows.items()))]
    return "\n".join([text, *verbs, "", *options]) + heading + examples


def _rows(rows: Iterable[tuple[str, str]]) -> list[str]:
    left = " " * _LEFT
    return [
        textwrap.fill(
            about,
            _WIDTH,
            initial_indent=f"  {written} ".ljust(_LEFT),
            subsequent_indent=left,
            break_on_hyphens=False,
        )
        for written, about in rows
    ]
