"""Completions of lines with ``%gpu``, ``%cudatime`` and ``%gpumem``.

Verbs, options, indexes and UUIDs, names of timings, variables and files, each where it fits. No
driver is called: the GPUs are those of a table that was read before.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpumagic.magics.commands import command_module

if TYPE_CHECKING:
    import argparse

    from gpumagic.magics.parsing import Parser

#: A line that begins with one of the magics, also behind an assignment; ``%%`` only as the cell's
#: first line.
_LINE = re.compile(r"\s*(?:[\w.\[\]'\", ]+=\s*)?(%{1,2})(gpu|cudatime|gpumem)[ \t]+(.*)", re.DOTALL)
#: At most so many files, variables and the like.
_MANY = 200


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


@dataclass(frozen=True)
class Completions:
    """The completions of the last word of a line."""

    items: tuple[Completion, ...]
    #: The part of the line that they replace.
    fragment: str
    #: Whether nothing but these fits.
    only: bool


def complete(line: str, session: Session, *, first: bool = True) -> Completions | None:
    """Return what fits at the end of ``line``; None for a line without one of the magics.

    ``first``: the line is its cell's first one, so that it may be a cell magic.
    """
    match = _LINE.fullmatch(line)
    if match is None or (match[1] == "%%" and not first):
        return None
    magic, rest = match[2], match[3]
    words = rest.split()
    fragment = "" if not rest or rest[-1].isspace() else words.pop()
    verb = next((word for word in words if not word.startswith("-")), None)
    parser, verbs = _grammar(magic, verb, cell=match[1] == "%%")
    action = _wants_value(parser, words)
    if action is not None:
        found = list(_values(magic, action, fragment, session))
        only = bool(found)
    elif fragment.startswith("-"):
        found, only = list(_options(parser)), True
    else:
        found = list(_words(magic, match[1], verb, verbs, words, fragment, session))
        # A statement may stand there too: the user's names are IPython's to complete.
        only = magic == "gpu" or verb in verbs or "--compare" in words
    fitting = tuple(each for each in found if each.text.startswith(fragment))[:_MANY]
    return Completions(fitting, fragment, only and bool(fitting))


def _grammar(magic: str, verb: str | None, *, cell: bool) -> tuple[Parser, Mapping[str, str]]:
    """Return the parser of the line's options, and the meanings of the magic's verbs."""
    verbs: Mapping[str, str] = _GPU if magic == "gpu" else {}
    if magic != "gpu" and not cell:
        from gpumagic.magics.verbs import VERBS, verb_module

        verbs = {word: each.meaning for word, each in VERBS[magic].items()}
        if verb is not None and verb in verbs:
            return verb_module(magic, verb).parser(verb), verbs
    return command_module(magic).parser(), verbs


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
_BEFORE_FILES = {("gpu", "plot"), ("gpumem", "plot"), ("gpumem", "snapshot")}


def _wants_value(parser: Parser, words: list[str]) -> argparse.Action | None:
    """Return the option that the next word is a value of; None where it is none."""
    for place, word in enumerate(reversed(words)):
        if word.startswith("-"):
            name = word.split("=")[0]
            action = next((a for a in parser._actions if name in a.option_strings), None)
            if action is None or action.nargs == 0:
                return None
            # --keep takes several names.
            return action if place == 0 or action.nargs == "+" else None
    return None


def _options(parser: Parser) -> Iterator[Completion]:
    for action in parser._actions:
        for option in action.option_strings:
            yield Completion(option, _short(action.help))


def _short(text: str | None) -> str:
    """Return the beginning of a description: front ends show it in a narrow column."""
    start = re.split(r"[;:,(]", text or "")[0].replace("%%", "%")
    return start if len(start) <= 40 else f"{start[:39]}…"


def _values(
    magic: str, action: argparse.Action, fragment: str, session: Session
) -> Iterator[Completion]:
    name = action.option_strings[-1] if action.option_strings else ""
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
    elif action.metavar == "FILE" or name in ("--save", "--against", "--trace"):
        if magic != "gpu":
            yield from _files(fragment)
    elif action.choices:
        yield from (Completion(str(choice), "choice") for choice in action.choices)


def _words(
    magic: str,
    mark: str,
    verb: str | None,
    verbs: Mapping[str, str],
    words: list[str],
    fragment: str,
    session: Session,
) -> Iterator[Completion]:
    """Yield what fits where no option is: a verb, a device, a name."""
    if magic == "cudatime" and "--compare" in words:
        yield from (Completion(name, "timing") for name in session.timings)
    elif verb is None:
        fit = {k: v for k, v in verbs.items() if mark == "%" or k in ("off", "on", "auto", "reset")}
        yield from (Completion(word, what) for word, what in fit.items())
        if magic == "gpu":
            yield from _devices(fragment, session)
        elif fragment.isidentifier():  # IPython completes no names after a magic
            yield from _variables(session)
    elif (magic, verb) == ("gpumem", "free"):
        yield from _variables(session)
    elif (magic, verb) in _BEFORE_FILES:
        yield from _files(fragment)
    else:
        arguments = _ARGUMENTS.get((magic, verb), ())
        yield from (Completion(word, "argument") for word in arguments)


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
    """Return index and UUID of the GPUs that an open NVML session has read; calls nothing."""
    nvml: Any = sys.modules.get("gpumagic.cuda.nvml")
    session = None if nvml is None else nvml.opened()
    return () if session is None else tuple(session.identities())
