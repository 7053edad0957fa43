"""Completions of lines with ``%gpu``, ``%cudatime`` and ``%gpumem``: verbs, options, variables.

Files, and the names in a statement after the first one, are IPython's to complete. No driver is
called: the GPUs are those that Linux lists.
"""

from __future__ import annotations

import builtins
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from gpumagic.errors import SpecError
from gpumagic.magics.commands import MAGICS, grammar_of
from gpumagic.magics.parsing import PLAIN, SPEC, Grammar, split
from gpumagic.system.system_files import listed_devices

if TYPE_CHECKING:
    import argparse

#: A line that begins with one of the magics, also behind an assignment, up to its last word.
_LINE = re.compile(
    rf"\s*(?:[\w.\[\]'\", ]+=\s*)?(%{{1,2}})({'|'.join(MAGICS)})[ \t]+(|.*\s)(\S*)", re.DOTALL
)
#: The words that choose GPUs.
_CHOICES = ("off", "on", "auto", "reset")
#: Names of IPython's own among the user's variables.
_HIDDEN = ("In", "Out", "exit", "quit", "get_ipython", "open")


class Completions(NamedTuple):
    """The completions of the last word of a line."""

    texts: list[str]
    #: The word that they replace.
    fragment: str
    #: Whether nothing but these fits, also where there are none.
    only: bool


def complete(line: str, variables: Mapping[str, Any], *, first: bool = True) -> Completions | None:
    """Return what fits at the end of a line; None for a line without one of the magics.

    ``first``: the line is its cell's first one, so that it may be a cell magic.
    """
    match = _LINE.fullmatch(line)
    if match is None or (match[1] == "%%" and not first):
        return None
    magic, before, fragment = match[2], match[3], match[4]
    try:
        found = _fitting(grammar_of(magic), split(before), fragment, variables, match[1] == "%%")
    except SpecError:  # within a quotation
        found = None
    texts = () if found is None else (each for each in found if each.startswith(fragment))
    return Completions([*dict.fromkeys(texts)], fragment, only=found is not None)


def _fitting(
    grammar: Grammar, words: list[str], fragment: str, variables: Mapping[str, Any], is_cell: bool
) -> Iterator[str] | None:
    """Return what may follow the words; None where IPython completes."""
    names = sorted(n for n in variables if not n.startswith("_") and n not in _HIDDEN)
    arguments, option, values = _read(grammar, words)
    is_gpu = SPEC in grammar.forms
    form = next((word for word in words[:1] + arguments[:1] if word in grammar.verbs), PLAIN)
    if form == PLAIN and arguments and not is_gpu:
        return None  # a statement
    if form == PLAIN and (arguments or is_cell) and is_gpu:
        form = SPEC
    if fragment.startswith("-") and (option is None or values):
        forms = [grammar.forms[form]]
        forms += [grammar.forms[SPEC]] if is_gpu and form == PLAIN else []
        return (o for each in forms for o in each.option_strings() if o not in words)
    if option is not None:
        names = ["all", *names] if option == "--keep" and not values else names
        return _values(_action(grammar, option), [n for n in names if n not in values])
    if form == PLAIN or not arguments:
        if not is_gpu and fragment and not fragment.isidentifier():
            return None
        verbs = [verb for verb in grammar.verbs if not verb.startswith("-")]
        first = [*(_CHOICES if is_gpu else ()), *([] if is_cell else verbs)]
        if is_gpu:
            return iter([*first, *_devices(fragment)])
        return iter([*first, *names, *(dir(builtins) if fragment else ())])
    if form == SPEC:
        return _devices(fragment)
    positional = [each for each in grammar.forms[form]._actions if not each.option_strings]
    return _values(positional[0], [n for n in names if n not in arguments]) if positional else None


def _read(grammar: Grammar, words: list[str]) -> tuple[list[str], str | None, list[str]]:
    """Return the words that are no options, the option that is open, and its values."""
    arguments: list[str] = []
    values: list[str] = []
    option: str | None = None
    for word in words:
        takes = grammar.takes(word)
        if takes is not None:
            option, values = (None if takes == "nothing" else word), []
        elif option is None:
            arguments.append(word)
        elif _action(grammar, option).nargs == "+":
            values.append(word)
        else:
            option = None
    return arguments, option, values


def _action(grammar: Grammar, option: str) -> argparse.Action:
    actions = (action for form in grammar.forms.values() for action in form._actions)
    return next(a for a in actions if option in a.option_strings or option[-2:] in a.option_strings)


def _values(action: argparse.Action, names: list[str]) -> Iterator[str] | None:
    """Return the values of an option or an argument; None where IPython completes."""
    if action.choices is not None:
        return iter(map(str, action.choices))
    if action.dest in ("names", "keep"):
        return iter(names)
    if action.dest == "fit":
        return (f"{name}=" for name in names)
    return None


def _devices(fragment: str) -> Iterator[str]:
    """Yield a list of GPUs with one more: an index, or a UUID where one has begun."""
    before, comma, last = fragment.rpartition(",")
    for index, uuid, *_ in listed_devices():
        device = str(index) if not last or last.isdecimal() else uuid
        if device is not None and device not in before.split(","):
            yield f"{before}{comma}{device}"


# --- IPython's side ------------------------------------------------------------------------------


class _NothingElse(list[Any]):
    """No completions, with a length of 1: IPython ignores ``suppress`` beside an empty list."""

    def __len__(self) -> int:
        return 1


def match(shell: Any, context: Any) -> dict[str, Any]:
    """Return what IPython's completer is to offer: the result of a matcher."""
    from IPython.core.completer import SimpleCompletion

    first = not any(context.full_text.split("\n")[: context.cursor_line])
    found = complete(context.text_until_cursor, shell.user_ns, first=first)
    if found is None:
        return {"completions": [], "suppress": False}
    items = [SimpleCompletion(text, type="magic") for text in found.texts]
    return {
        "completions": items or (_NothingElse() if found.only else []),
        "matched_fragment": found.fragment,
        "suppress": found.only,
        "ordered": True,  # before what others offer, and verbs before names
    }
