"""Completions of lines with ``%gpu``, ``%cudatime`` and ``%gpumem``: verbs, options, names.

Files, and a statement after its first name, are IPython's to complete. No code of the user's runs.
"""

from __future__ import annotations

import builtins
import keyword
import re
import types
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from gpumagic.errors import SpecError
from gpumagic.magics.magic_class import MAGICS, grammar_of
from gpumagic.magics.magic_state import find_state
from gpumagic.magics.option_forms import PLAIN, SPEC
from gpumagic.magics.parsing import Grammar, split
from gpumagic.system import introspection
from gpumagic.system.shell import Shell

if TYPE_CHECKING:
    from IPython.core.completer import CompletionContext

#: A line that begins with one of the magics, also behind an assignment, up to its last word.
_LINE = re.compile(
    rf"\s*(?:[\w.\[\]'\", ]+=\s*)?(%{{1,2}})({'|'.join(MAGICS)})[ \t]+(|.*\s)(\S*)", re.DOTALL
)
_FUNCTIONS = (types.FunctionType, types.MethodType, type)


def complete(
    line: str, variables: Mapping[str, Any], results: Iterable[str] = (), *, first: bool = True
) -> list[str]:
    """Return what fits at the end of a line; nothing for a line without one of the magics.

    ``results`` are the names of results; ``first``: the line is its cell's first one, so that it
    may be a cell magic.
    """
    match = _LINE.fullmatch(line)
    if match is None or (match[1] == "%%" and not first):
        return []
    grammar, is_cell = grammar_of(match[2]), match[1] == "%%"
    visible = {name: variables[name] for name in sorted(variables) if not name.startswith("_")}
    try:
        found = _fitting(grammar, match[3], match[4], visible, results, is_cell=is_cell)
    except SpecError:  # within a quotation
        return []
    return [*dict.fromkeys(each for each in found if each.startswith(match[4]))]


def _fitting(
    grammar: Grammar,
    text: str,
    fragment: str,
    variables: Mapping[str, Any],
    results: Iterable[str],
    *,
    is_cell: bool,
) -> list[str]:
    """Return what may follow the text."""
    is_gpu = SPEC in grammar.forms
    words, (_, rest, _) = split(text), grammar.take_options(text)
    word = "".join(split(rest)[:1])
    form = word if word in grammar.verbs else SPEC if is_gpu and (word or is_cell) else PLAIN
    if form == PLAIN and word:
        return []  # a statement
    verbs = [] if is_cell else grammar.verbs
    last = words[-1] if words else ""
    if fragment.startswith("-"):
        forms = [grammar.forms[form], *([grammar.forms[SPEC]] if is_gpu and not word else [])]
        return [option for each in forms for option in each.takes if option not in words]
    if last == "-f":
        return [name for name, value in variables.items() if introspection.is_a(value, *_FUNCTIONS)]
    if last == "--against":
        return [*results]
    if last != "--keep" and last and grammar.takes(last):
        return []
    if not word:
        python = [*dir(builtins), *keyword.kwlist] if fragment else []
        return [*grammar.words, *verbs, *([] if is_gpu else [*variables, *python])]
    if form in ("compare", "forget"):
        return [name for name in results if name not in words]
    found = grammar.forms[form].choices()
    if "--keep" in words:
        found += [*(["all", "none"] if last == "--keep" else []), *variables]
    elif form == "free":
        found += variables
    return [name for name in found if name not in words]


def match(shell: Shell, context: CompletionContext) -> dict[str, Any]:
    """Return what IPython's completer is to offer: the result of a matcher."""
    from IPython.core.completer import SimpleCompletion

    line = context.text_until_cursor
    first = not any(context.full_text.split("\n")[: context.cursor_line])
    state = find_state(shell)
    results = [] if state is None else [*state.named_timings]
    found = complete(line, shell.user_ns, results, first=first)
    return {
        "completions": [SimpleCompletion(text, type="magic") for text in found],
        "matched_fragment": re.split(r"\s", line)[-1],
        "suppress": bool(found),
        "ordered": True,  # before what others offer, and verbs before names
    }
