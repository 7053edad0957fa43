"""Completions of lines with ``%gpu``, ``%cudatime`` and ``%gpumem``.

Verbs, options, indexes and UUIDs, names of timings, variables and files, each where it fits. No
driver is called: the GPUs are those of a table that was read before.
"""

from __future__ import annotations

import os
import re
import sys
import textwrap
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpumagic.cuda.listed_devices import listed_devices
from gpumagic.magics.parsers import options_module

if TYPE_CHECKING:
    import argparse

    from gpumagic.magics.parsing import Parser

#: A line that begins with one of the magics, also behind an assignment; ``%%`` only as the cell's
#: first line.
_LINE = re.compile(r"\s*(?:[\w.\[\]'\", ]+=\s*)?(%{1,2})(gpu|cudatime|gpumem)[ \t]+(.*)", re.DOTALL)
#: A word of a line, quotes as in a shell; the last quotation may still be open.
_WORD = re.compile(r"""(?:'[^']*(?:'|$)|"[^"]*(?:"|$)|[^\s'"])+""")
#: At most so many files, variables and the like.
_MANY = 200
#: The length of a description: front ends show it in a narrow column.
_DESCRIPTION = 60


@dataclass(frozen=True)
class Completion:
    """The text of a completion, and what it is in a word or two."""

    text: str
    kind: str


@dataclass(frozen=True)
class Session:
    """What may be named in a line, read by the caller."""

    #: The user's variables.
    variables: Mapping[str, Any]
    #: Names of timings.
    timings: tuple[str, ...] = ()
    #: What is known of the GPUs: index and UUID.
    devices: tuple[tuple[int, str | None], ...] = ()
    #: Returns the names with which a statement may begin, by the beginning of a name.
    statement_names: Callable[[str], Iterable[str]] = lambda beginning: ()


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
    quote, beginning = (fragment[0], fragment[1:]) if fragment[:1] in ("'", '"') else ("", fragment)
    found, only = _fitting(place, beginning, session)
    fitting = [each for each in found if each.text.startswith(beginning)][:_MANY]
    items = (Completion(_quoted(each.text, quote), each.kind) for each in fitting)
    return Completions(tuple(items), fragment, only)


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
    #: The option that the next word is a value of.
    option: argparse.Action | None
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
    arguments, given, option = _read(lambda: _parser(magic, None), words)
    verb = arguments[0] if arguments and arguments[0] in verbs else None
    if verb is not None and magic != "gpu":
        arguments, given, option = _read(lambda: _parser(magic, verb), words)
    is_code = magic != "gpu" and "--compare" not in given
    in_statement = is_code and ("--" in words or bool(arguments and verb is None))
    return _Place(magic, cell, arguments, given, option, verbs, verb, in_statement)


def _parser(magic: str, verb: str | None) -> Parser:
    if verb is not None and magic != "gpu":
        from gpumagic.magics.verbs import verb_parser

        return verb_parser(magic, verb)
    found: Parser = options_module(magic).parser()
    return found


def _read(
    parser: Callable[[], Parser], words: list[str]
) -> tuple[list[str], list[str], argparse.Action | None]:
    """Return the arguments, the options, and the option that the next word is a value of.

    ``parser`` is called if there is an option: its module takes long to import.
    """
    options: dict[str, argparse.Action] = {}
    if any(word.startswith("-") for word in words):
        options = {name: each for each in parser()._actions for name in each.option_strings}
    arguments: list[str] = []
    given: list[str] = []
    open_option: argparse.Action | None = None
    for word in words:
        name, joined, _ = word.partition("=")
        if name.startswith("-"):
            option = options.get(name)
            if option is not None:
                given.append(option.option_strings[0])
            is_complete = option is None or option.nargs == 0 or joined
            open_option = None if is_complete else option
        elif open_option is None:
            arguments.append(word)
        elif open_option.nargs != "+":  # --keep takes several names
            open_option = None
    return arguments, given, open_option


def _fitting(place: _Place, beginning: str, session: Session) -> tuple[Iterable[Completion], bool]:
    """Return what fits, and whether nothing else does."""
    option = place.option
    if place.in_statement:
        return (), False  # its names are IPython's to complete
    if beginning.startswith("-") and (option is None or option.nargs == "+"):
        return _options(place), True
    if option is not None:
        # IPython knows the attributes of a name: -f model.forward
        is_attribute = "." in beginning and "-f" in option.option_strings
        return _values(option, beginning, session), not is_attribute
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


def _options(place: _Place) -> Iterator[Completion]:
    """Yield the options that have an effect beside the words that are there."""
    without_effect: Collection[str] = ()
    if place.magic == "gpu":
        from gpumagic.magics.gpu.options import without_effect as of_gpu

        without_effect = of_gpu(place.arguments, place.given, one_cell=place.is_cell)
    for action in place.parser()._actions:
        for option in action.option_strings:
            if action.option_strings[0] not in without_effect:
                yield Completion(option, _short(action.help) or "option")


def _short(text: str | None) -> str:
    """Return the beginning of a description."""
    start = re.split(r"[;:(]", text or "")[0].replace("%%", "%")
    return textwrap.shorten(start, _DESCRIPTION, placeholder=" …")


def _values(option: argparse.Action, fragment: str, session: Session) -> Iterator[Completion]:
    name = option.option_strings[-1] if option.option_strings else ""
    if name == "--keep":
        yield Completion("all", "every variable")
        yield from _variables(session)
    elif name in ("-f", "--function"):
        yield from _functions(session)
    elif name == "--fit":
        # The range is the user's to say.
        yield from (
            Completion(f"{each}=", "variable") for each in _names(session) if "=" not in fragment
        )
    elif name == "--on":
        yield from _torch_devices(fragment, session)
    elif option.metavar == "FILE" or name in ("--save", "--against", "--trace"):
        yield from _files(fragment)
    else:
        choices = option.choices if option.choices is not None else _VALUES.get(name, ())
        yield from (Completion(str(choice), "choice") for choice in choices)


def _first_words(place: _Place, beginning: str, session: Session) -> Iterator[Completion]:
    """Yield the verbs, and behind them the names with which a statement may begin."""
    yield from (Completion(word, what) for word, what in place.verbs.items())
    if beginning and not beginning.isidentifier():
        return
    variables = [name for name in _names(session) if name not in place.verbs]
    yield from (Completion(name, "variable") for name in variables)
    if beginning:
        known = {*place.verbs, *variables}
        names = sorted({*session.statement_names(beginning)} - known)
        yield from (Completion(name, "name") for name in names)


def _words(place: _Place, fragment: str, session: Session) -> Iterator[Completion]:
    """Yield what fits where no option and no statement is: a verb, a device, a name."""
    if "--compare" in place.given:
        yield from (Completion(name, "timing") for name in session.timings)
        return
    if not place.arguments:
        choices = ("off", "on", "auto", "reset")
        fit = {k: v for k, v in place.verbs.items() if not place.is_cell or k in choices}
        yield from (Completion(word, what) for word, what in fit.items())
        yield from _devices(fragment, session)
        return
    action = (place.magic, place.arguments[0])
    if action == ("gpumem", "free"):
        yield from _variables(session)
    elif len(place.arguments) > 1:
        return
    elif action in _BEFORE_FILES:
        yield from _files(fragment)
    else:
        yield from (Completion(word, "argument") for word in _ARGUMENTS.get(action, ()))


def _devices(fragment: str, session: Session) -> Iterator[Completion]:
    """Yield indexes, or UUIDs where one has begun; none twice in a list."""
    before, comma, last = fragment.rpartition(",")
    named = before.split(",")
    for index, uuid in session.devices:
        device = str(index) if not last or last.isdecimal() else uuid
        if device is not None and device not in named:
            yield Completion(f"{before}{comma}{device}", "GPU")


def _torch_devices(fragment: str, session: Session) -> Iterator[Completion]:
    """Yield torch's names of devices, none twice in a list."""
    before, comma, _ = fragment.rpartition(",")
    named = before.split(",")
    # Ordinals count what this process sees, which may be less; unknown ones are refused.
    for device in ("cpu", "cuda", *(f"cuda:{i}" for i in range(len(session.devices)))):
        if device not in named:
            yield Completion(f"{before}{comma}{device}", "device")


def _variables(session: Session) -> Iterator[Completion]:
    for name in _names(session):
        yield Completion(name, "variable")


def _functions(session: Session) -> Iterator[Completion]:
    for name in _names(session):
        value = session.variables.get(name)
        if type(value).__name__ in ("function", "type", "builtin_function_or_method"):
            yield Completion(name, "function")


def _names(session: Session) -> Iterable[str]:
    hidden = ("In", "Out", "exit", "quit", "get_ipython", "open")
    return sorted(n for n in session.variables if not n.startswith("_") and n not in hidden)


def _files(fragment: str) -> Iterator[Completion]:
    """Yield the files and folders whose paths begin with ``fragment``."""
    folder, name = os.path.split(fragment)
    try:
        with os.scandir(Path(folder).expanduser() if folder else ".") as entries:
            found = [
                (entry.name, entry.is_dir()) for entry in entries if entry.name.startswith(name)
            ]
    except (OSError, RuntimeError, ValueError):
        return
    for each, is_folder in sorted(found)[:_MANY]:
        if name.startswith(".") or not each.startswith("."):
            yield Completion(
                str(Path(folder) / each) + ("/" if is_folder else ""),
                "folder" if is_folder else "file",
            )


# --- IPython's side ---------------------------------------------------------------------------


def known_devices() -> tuple[tuple[int, str | None], ...]:
    """Return index and UUID of the GPUs without a call of NVML or of the driver.

    They are those that an open NVML session has read, or those that Linux lists.
    """
    nvml: Any = sys.modules.get("gpumagic.cuda.nvml")
    session = None if nvml is None else nvml.opened()
    read = () if session is None else tuple(session.identities())
    return read or listed_devices()
