"""Completions of lines with ``%gpu``, ``%cudatime`` and ``%gpumem``: verbs, options, variables.

Files, values, and a statement after its first name are IPython's to complete. No driver is called:
the GPUs are those that Linux lists.
"""

from __future__ import annotations

import builtins
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from gpumagic.errors import SpecError
from gpumagic.magics.commands import MAGICS, grammar_of
from gpumagic.magics.parsing import PLAIN, SPEC, Grammar, split
from gpumagic.system.system_files import listed_devices

#: A line that begins with one of the magics, also behind an assignment, up to its last word.
_LINE = re.compile(
    rf"\s*(?:[\w.\[\]'\", ]+=\s*)?(%{{1,2}})({'|'.join(MAGICS)})[ \t]+(|.*\s)(\S*)", re.DOTALL
)
#: The words that choose GPUs.
_CHOICES = ("off", "on", "auto", "reset")
#: Names of IPython's own among the user's variables.
_HIDDEN = ("In", "Out", "exit", "quit", "get_ipython", "open")


def complete(line: str, variables: Mapping[str, Any], *, first: bool = True) -> list[str]:
    """Return what fits at the end of a line; nothing for a line without one of the magics.

    ``first``: the line is its cell's first one, so that it may be a cell magic.
    """
    match = _LINE.fullmatch(line)
    if match is None or (match[1] == "%%" and not first):
        return []
    names = sorted(n for n in variables if not n.startswith("_") and n not in _HIDDEN)
    fragment = match[4]
    try:
        words = split(match[3])
    except SpecError:  # within a quotation
        return []
    found = _fitting(grammar_of(match[2]), words, fragment, names, is_cell=match[1] == "%%")
    return [*dict.fromkeys(each for each in found if each.startswith(fragment))]


def _fitting(
    grammar: Grammar, words: list[str], fragment: str, names: list[str], *, is_cell: bool
) -> Iterable[str]:
    """Return what may follow the words."""
    is_gpu = SPEC in grammar.forms
    word = _first_word(grammar, words)
    form = word if word in grammar.verbs else SPEC if is_gpu and (word or is_cell) else PLAIN
    if form == PLAIN and word:
        return ()  # a statement
    if fragment.startswith("-"):
        forms = [grammar.forms[form], *([grammar.forms[SPEC]] if is_gpu and not word else [])]
        verbs = [] if words or is_cell else [verb for verb in grammar.verbs if verb[0] == "-"]
        options = (option for each in forms for option in each.option_strings())
        return [*verbs, *(option for option in options if option not in words)]
    option = next((each for each in reversed(words) if each.startswith("-")), "")
    others = [name for name in names if name not in words]
    if option == "--keep":
        return ["all", *others] if words[-1] == option else others
    if option and option == words[-1] and grammar.takes(option) == "one":
        return [f"{name}=" for name in names] if option == "--fit" else ()
    if not word:
        verbs = [] if is_cell else [verb for verb in grammar.verbs if not verb.startswith("-")]
        if is_gpu:
            return [*_CHOICES, *verbs, *_devices(fragment)]
        return [*verbs, *names, *(dir(builtins) if fragment else ())]
    if form == SPEC:
        return _devices(fragment)
    # Of the arguments of a verb, words and variables are known here.
    arguments = [each for each in grammar.forms[form]._actions if not each.option_strings]
    choices = [str(choice) for each in arguments for choice in each.choices or ()]
    return choices + [name for each in arguments if each.dest == "names" for name in others]


def _first_word(grammar: Grammar, words: list[str]) -> str:
    """Return the first word that is neither an option nor a value of one; empty without any."""
    takes: str | None = None
    for word in words:
        if word.startswith("-"):
            takes = grammar.takes(word)
        elif takes not in ("one", "many"):
            return word
        elif takes == "one":
            takes = None
    return ""


def _devices(fragment: str) -> Iterator[str]:
    """Yield a list of GPUs with one more: an index, or a UUID where one has begun."""
    before, comma, last = fragment.rpartition(",")
    for index, uuid, *_ in listed_devices():
        device = str(index) if not last or last.isdecimal() else uuid
        if device is not None and device not in before.split(","):
            yield f"{before}{comma}{device}"


def match(shell: Any, context: Any) -> dict[str, Any]:
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
