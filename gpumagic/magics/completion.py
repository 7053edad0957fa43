"""Completions of lines with ``%gpu``, ``%cudatime`` and ``%gpumem``: verbs, options, variables.

Files, values, and a statement after its first name are IPython's to complete.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gpumagic.errors import SpecError
from gpumagic.magics.commands import MAGICS, grammar_of
from gpumagic.magics.parsing import PLAIN, SPEC, Grammar, split
from gpumagic.system.shell import Shell

if TYPE_CHECKING:
    from IPython.core.completer import CompletionContext

#: A line that begins with one of the magics, also behind an assignment, up to its last word.
_LINE = re.compile(
    rf"\s*(?:[\w.\[\]'\", ]+=\s*)?(%{{1,2}})({'|'.join(MAGICS)})[ \t]+(|.*\s)(\S*)", re.DOTALL
)


def complete(line: str, variables: Mapping[str, Any], *, first: bool = True) -> list[str]:
    """Return what fits at the end of a line; nothing for a line without one of the magics.

    ``first``: the line is its cell's first one, so that it may be a cell magic.
    """
    match = _LINE.fullmatch(line)
    if match is None or (match[1] == "%%" and not first):
        return []
    grammar, is_cell = grammar_of(match[2]), match[1] == "%%"
    names = sorted(name for name in variables if not name.startswith("_"))
    try:
        found = _fitting(grammar, match[3], match[4], names, is_cell=is_cell)
    except SpecError:  # within a quotation
        return []
    return [*dict.fromkeys(each for each in found if each.startswith(match[4]))]


def _fitting(
    grammar: Grammar, text: str, fragment: str, names: list[str], *, is_cell: bool
) -> list[str]:
    """Return what may follow the text."""
    is_gpu = SPEC in grammar.forms
    words, (_, rest, _) = split(text), grammar.take_options(text)
    word = "".join(split(rest)[:1])
    form = word if word in grammar.verbs else SPEC if is_gpu and (word or is_cell) else PLAIN
    if form == PLAIN and word:
        return []  # a statement
    verbs = [] if is_cell else grammar.verbs
    if fragment.startswith("-"):
        forms = [grammar.forms[form], *([grammar.forms[SPEC]] if is_gpu and not word else [])]
        options = (option for each in forms for option in each.option_strings())
        return [*verbs, *(option for option in options if option not in words)]
    if words and words[-1] != "--keep" and grammar.takes(words[-1]):
        return []
    if not word:
        return [*grammar.words, *verbs, *([] if is_gpu else names)]
    arguments = [each for each in grammar.forms[form]._actions if not each.option_strings]
    choices = [str(choice) for each in arguments for choice in each.choices or ()]
    takes_names = "--keep" in words or any(each.dest == "names" for each in arguments)
    return choices + [name for name in names if takes_names and name not in words]


def match(shell: Shell, context: CompletionContext) -> dict[str, Any]:
    """Return what IPython's completer is to offer: the result of a matcher."""
    from IPython.core.completer import SimpleCompletion

    line = context.text_until_cursor
    first = not any(context.full_text.split("\n")[: context.cursor_line])
    found = complete(line, shell.user_ns, first=first)
    return {
        "completions": [SimpleCompletion(text, type="magic") for text in found],
        "matched_fragment": re.split(r"\s", line)[-1],
        "suppress": bool(found),
        "ordered": True,  # before what others offer, and verbs before names
    }
