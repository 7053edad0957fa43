"""The help of a magic: its own text, and the verbs and options that its parsers have."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from inspect import cleandoc

from gpumagic.magics.commands import grammar_of

#: Columns of a terminal, and of the verbs and options on the left.
_WIDTH, _LEFT = 79, 30


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
