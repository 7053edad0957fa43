"""Completions of lines with ``%gpu``, ``%cudatime`` and ``%gpumem``.

Verbs, options, indexes and UUIDs, names of timings, variables and files, each where it fits. No
driver is called: the GPUs are those of a table that was read before.
"""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from gpumagic.magics import device_names
from gpumagic.magics.parsers import options_module
from gpumagic.magics.session_names import (
    Completion,
    Session,
    attributes,
    files,
    functions,
    names,
    statement_names,
    variables,
)
from gpumagic.system.system_files import listed_devices

if TYPE_CHECKING:
    import argparse

    from gpumagic.magics.parsing import Parser

#: A line that begins with one of the magics, also behind an assignment; ``%%`` only as the cell's
#: first line.
_LINE = re.compile(r"\s*(?:[\w.\[\]'\", ]+=\s*)?(%{1,2})(gpu|cudatime|gpumem)[ \t]+(.*)", re.DOTALL)
#: A word of a line, quotes as in a shell; the last quotation may still be open.
_WORD = re.compile(r"""(?:'[^']*(?:'|$)|"[^"]*(?:"|$)|[^\s'"])+""")
_OPEN_QUOTATION = re.compile(r"""(?:'[^']*'|"[^"]*"|[^'"])*('[^']*|"[^"]*)""")
#: A name with attributes at the end of an expression.
_ATTRIBUTE = re.compile(r"(?<![\w.])[^\W\d]\w*\.(?:\w+\.)*\w*$")
#: At most so many files, variables and the like.
_MANY = 200
#: The length of a description: front ends show it in a narrow column.
_DESCRIPTION = 60


@dataclass(frozen=True)
class Completions:
    """The completions of the last word of a line."""

    items: tuple[Completion, ...]
    #: The part of the line that they replace.
    fragment: str
    #: Whether nothing but these fits, also where there are none.
    only: bool


def complete(line: str, session: Session, *, first: bool = True) -> Completions | None:
    """Return what fits at the end of ``line``; None for a line without one of the magics.

    ``first``: the line is its cell's first one, so that it may be a cell magic.
    """
    match = _LINE.fullmatch(line)
    if match is None or (match[1] == "%%" and not first):
        return None
    words, fragment = _split(match[3])
    place = _place(match[2], words, cell=match[1] == "%%")
    option, joined, value = _joined_option(place, fragment)
    if option is not None:
        place = replace(place, option=option, values=[])
    quote, beginning = (value[0], value[1:]) if value[:1] in ("'", '"') else ("", value)
    found, only = _fitting(place, beginning, session)
    in_quotes = quote or _OPEN_QUOTATION.fullmatch(beginning)
    if not only and not in_quotes and (attribute := _ATTRIBUTE.search(beginning)):
        return Completions(tuple(attributes(attribute[0], session)), attribute[0], False)
    fitting = [each for each in found if each.text.startswith(beginning)][:_MANY]
    items = (Completion(joined + _quoted(each.text, quote), each.kind) for each in fitting)
    return Completions(tuple(items), fragment, only)


def _joined_option(place: _Place, fragment: str) -> tuple[argparse.Action | None, str, str]:
    """Return the option in ``--name=value`` with ``--name=``, and the value; else None."""
    name, equals, value = fragment.partition("=")
    if equals and name.startswith("-") and not place.in_statement:
        for action in place.parser()._actions:
            if name in action.option_strings and action.nargs != 0:
                return action, f"{name}=", value
    return None, "", fragment


def _split(text: str) -> tuple[list[str], str]:
    """Return the complete words of ``text``, and the beginning of one at its end."""
    words = list(_WORD.finditer(text))
    fragment = words.pop()[0] if words and words[-1].end() == len(text) else ""
    return [word[0] for word in words], fragment


def _quoted(text: str, quote: str) -> str:
    """Return ``text`` in quotes if one is open or it needs them; those of a folder stay open."""
    if not quote and re.search(r"[\s'\"]", text):
        quote = '"' if "'" in text else "'"
    return f"{quote}{text}" if text.endswith("/") else f"{quote}{text}{quote}"


@dataclass(frozen=True)
class _Place:
    """What precedes the word that is completed."""

    magic: str
    is_cell: bool
    #: The words that are neither options nor their values.
    arguments: list[str]
    #: The options, by their first names.
    given: list[str]
    #: The option that the next word is a value of, and its values before that.
    option: argparse.Action | None
    values: list[str]
    #: The magic's verbs and their meanings, and the one that the line has.
    verbs: Mapping[str, str]
    verb: str | None
    #: Whether a statement has begun.
    in_statement: bool

    def parser(self) -> Parser:
        """Return the parser of the options that may come here."""
        return _parser(self.magic, self.verb)


def _place(magic: str, words: list[str], *, cell: bool) -> _Place:
    verbs: Mapping[str, str] = _GPU if magic == "gpu" else {}
    if magic != "gpu" and not cell:
        from gpumagic.magics.verbs import VERBS

        verbs = {word: each.meaning for word, each in VERBS[magic].items()}
    arguments, given, option, values = _read(lambda: _parser(magic, None), words)
    verb = arguments[0] if arguments and arguments[0] in verbs else None
    if verb is not None and magic != "gpu":
        arguments, given, option, values = _read(lambda: _parser(magic, verb), words)
    is_code = magic != "gpu" and "--compare" not in given
    in_statement = is_code and ("--" in words or bool(arguments and verb is None))
    return _Place(magic, cell, arguments, given, option, values, verbs, verb, in_statement)


def _parser(magic: str, verb: str | None) -> Parser:
    if verb is not None and magic != "gpu":
        from gpumagic.magics.verbs import verb_parser

        return verb_parser(magic, verb)
    found: Parser = options_module(magic).parser()
    return found


def _read(
    parser: Callable[[], Parser], words: list[str]
) -> tuple[list[str], list[str], argparse.Action | None, list[str]]:
    """Return the arguments, the options, the option that the next word is a value of, its values.

    ``parser`` is called if there is an option: its module takes long to import.
    """
    options: dict[str, argparse.Action] = {}
    if any(word.startswith("-") for word in words):
        options = {name: each for each in parser()._actions for name in each.option_strings}
    arguments: list[str] = []
    given: list[str] = []
    open_option: argparse.Action | None = None
    values: list[str] = []
    for word in words:
        name, joined, _ = word.partition("=")
        if name.startswith("-"):
            option = options.get(name)
            if option is not None:
                given.append(option.option_strings[0])
            is_complete = option is None or option.nargs == 0 or joined
            open_option, values = (None if is_complete else option), []
        elif open_option is None:
            arguments.append(word)
        elif open_option.nargs == "+":  # --keep takes several names
            values.append(word)
        else:
            open_option = None
    return arguments, given, open_option, values


def _fitting(place: _Place, beginning: str, session: Session) -> tuple[Iterable[Completion], bool]:
    """Return what fits, and whether nothing else does."""
    option = place.option
    if place.in_statement:
        return (), False  # its names are IPython's to complete
    if beginning.startswith("-") and (option is None or place.values):
        return _options(place, session), True
    if option is not None and "-s" in option.option_strings:  # a statement
        is_name = not beginning or beginning.isidentifier()
        return statement_names(beginning, session), is_name
    if option is not None:
        # IPython knows the attributes of a name: -f model.forward
        is_attribute = "." in beginning and "-f" in option.option_strings
        return _values(place, option, beginning, session), not is_attribute
    if place.magic != "gpu" and place.verb is None and "--compare" not in place.given:
        # A statement may begin here: its first name is completed, behind the verbs.
        is_name = not beginning or beginning.isidentifier()
        return _first_words(place, beginning, session), is_name
    return _words(place, beginning, session), True


#: The words of ``%gpu`` that are no options, with their meanings.
_GPU = {
    "off": "hide all GPUs",
    "on": "show all GPUs",
    "auto": "the most free memory",
    "reset": "as at the start",
    "ps": "processes",
    "watch": "a live panel",
    "plot": "use over time",
    "shutdown": "end a notebook",
    "doctor": "diagnosis",
    "cluster": "engines' GPUs",
    "pin": "a GPU each engine",
    "dist": "process group",
}
#: By magic and verb: the words that may follow it; and the verbs that a file may follow.
_ARGUMENTS = {
    ("gpu", "watch"): ("off",),
    ("gpu", "dist"): ("init", "down"),
    ("gpumem", "record"): ("on", "off"),
    ("gpumem", "explain"): ("on", "off"),
    ("gpumem", "limit"): ("off",),
    ("gpumem", "park"): ("off",),
}
_BEFORE_FILES = {("gpu", "plot"), ("gpu", "cluster"), ("gpumem", "plot"), ("gpumem", "snapshot")}


#: By option: values that it may have, where the parser allows others too.
_VALUES: Mapping[str, Sequence[str]] = {"--backend": ("auto", "nccl", "gloo")}


def _options(place: _Place, session: Session) -> Iterator[Completion]:
    """Yield the options that have an effect beside the words and options that are there."""
    without_effect: Collection[str] = ()
    if place.magic == "gpu":
        without_effect = _without_effect(place, place.arguments, session)
    for action in place.parser()._actions:
        is_repeated = action.option_strings[:1] == ["-f"]
        for option in action.option_strings:
            first = action.option_strings[0]
            if first not in without_effect and (is_repeated or first not in place.given):
                yield Completion(option, _short(action.help) or "option")


def _without_effect(place: _Place, words: Sequence[str], session: Session) -> set[str]:
    """Return the options of ``%gpu`` that are refused beside these words."""
    from gpumagic.magics.gpu import options

    found = options.without_effect(words, place.given, one_cell=place.is_cell)
    return {*found, "-p"} if session.has_panel and words[:1] == ["watch"] else found


def _goes_on(place: _Place, session: Session, word: str) -> bool:
    """Return whether a word of ``%gpu`` may follow the words and options that are there."""
    if not place.given:
        return True  # the module of the options takes long to import
    from gpumagic.magics.gpu import options

    words = [*place.arguments, word]
    if options.is_only_here(words, place.given):
        return False
    return _without_effect(place, words, session).isdisjoint(place.given)


def _short(text: str | None) -> str:
    """Return the beginning of a description."""
    start = re.split(r"[;:(]", text or "")[0].replace("%%", "%")
    return textwrap.shorten(start, _DESCRIPTION, placeholder=" …")


def _values(
    place: _Place, option: argparse.Action, fragment: str, session: Session
) -> Iterator[Completion]:
    name = option.option_strings[-1] if option.option_strings else ""
    if name == "--keep":
        if "all" in place.values:
            return
        if not place.values:
            yield Completion("all", "every variable")
        yield from variables(session, place.values)
    elif name in ("-f", "--function"):
        yield from functions(session)
    elif name == "--fit":
        # The range is the user's to say.
        yield from (
            Completion(f"{each}=", "variable") for each in names(session) if "=" not in fragment
        )
    elif name == "--on":
        found = device_names.torch_devices(fragment, len(session.devices))
        yield from (Completion(device, "device") for device in found)
    elif option.metavar == "FILE" or name in ("--save", "--against", "--trace"):
        yield from files(fragment)
    else:
        choices = option.choices if option.choices is not None else _VALUES.get(name, ())
        yield from (Completion(str(choice), "choice") for choice in choices)


def _first_words(place: _Place, beginning: str, session: Session) -> Iterator[Completion]:
    """Yield the verbs, and behind them the names with which a statement may begin."""
    verbs = {word: what for word, what in place.verbs.items() if _is_verb_beside(place, word)}
    yield from (Completion(word, what) for word, what in verbs.items())
    yield from statement_names(beginning, session, verbs)


def _is_verb_beside(place: _Place, word: str) -> bool:
    """Return whether a verb has all the options that are there; else its name is a statement."""
    if not place.given:
        return True
    return {*place.given} <= {*_parser(place.magic, word).option_strings()}


def _words(place: _Place, fragment: str, session: Session) -> Iterator[Completion]:
    """Yield what fits where no option and no statement is: a verb, a device, a name."""
    if "--compare" in place.given:
        named = [word.strip("'\"") for word in place.arguments]
        yield from (Completion(name, "timing") for name in session.timings if name not in named)
        return
    if not place.arguments:
        choices = ("off", "on", "auto", "reset")
        fit = {k: v for k, v in place.verbs.items() if not place.is_cell or k in choices}
        yield from (Completion(k, v) for k, v in fit.items() if _goes_on(place, session, k))
        if _goes_on(place, session, "0"):
            found = device_names.gpus(fragment, session.devices)
            yield from (Completion(device, "GPU") for device in found)
        return
    action = (place.magic, place.arguments[0])
    if action == ("gpumem", "free"):
        yield from variables(session, place.arguments[1:])
    elif len(place.arguments) > 1:
        return
    elif action in _BEFORE_FILES:
        yield from files(fragment)
    else:
        for word in _ARGUMENTS.get(action, ()):
            if place.magic != "gpu" or _goes_on(place, session, word):
                yield Completion(word, "argument")


# --- IPython's side ---------------------------------------------------------------------------


def known_devices() -> tuple[tuple[int, str | None], ...]:
    """Return index and UUID of the GPUs without a call of NVML or of the driver.

    They are those that an open NVML session has read, or those that Linux lists.
    """
    nvml: Any = sys.modules.get("gpumagic.cuda.nvml")
    session = None if nvml is None else nvml.opened()
    read = () if session is None else tuple(session.identities())
    return read or listed_devices()
