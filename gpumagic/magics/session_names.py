"""What may be named in a line: variables, functions, attributes and files, as completions."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

#: At most so many files.
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
    #: Returns the names with which a statement may begin, by the beginning of a name.
    statement_names: Callable[[str], Iterable[str]] = lambda beginning: ()
    #: Returns expressions that continue one with a dot; nothing where IPython does it by itself.
    attributes: Callable[[str], Iterable[str]] = lambda expression: ()
    #: Whether ``%gpu watch`` is a panel, which has no processes.
    has_panel: bool = False


def statement_names(
    beginning: str, session: Session, verbs: Collection[str] = ()
) -> Iterator[Completion]:
    """Yield the names with which a statement may begin, the user's first."""
    if beginning and not beginning.isidentifier():
        return
    own = [name for name in names(session) if name not in verbs]
    yield from (Completion(name, "variable") for name in own)
    if beginning:
        others = {*session.statement_names(beginning)} - {*verbs, *own}
        yield from (Completion(name, "name") for name in sorted(others))


def attributes(expression: str, session: Session) -> Iterator[Completion]:
    """Yield the attributes with which an expression may go on; private ones if one has begun."""
    last = expression.rpartition(".")[2]
    for each in session.attributes(expression):
        if last.startswith("_") or not each.rpartition(".")[2].startswith("_"):
            yield Completion(each, "attribute")


def variables(session: Session, named: Collection[str]) -> Iterator[Completion]:
    """Yield the user's variables that are not ``named`` already."""
    for name in names(session):
        if name not in named:
            yield Completion(name, "variable")


def functions(session: Session) -> Iterator[Completion]:
    for name in names(session):
        value = session.variables.get(name)
        if type(value).__name__ in ("function", "type", "builtin_function_or_method"):
            yield Completion(name, "function")


def names(session: Session) -> Iterable[str]:
    hidden = ("In", "Out", "exit", "quit", "get_ipython", "open")
    return sorted(n for n in session.variables if not n.startswith("_") and n not in hidden)


def files(fragment: str) -> Iterator[Completion]:
    """Yield the files and folders whose paths begin with ``fragment``."""
    folder, name = os.path.split(fragment)
    before = fragment.removesuffix(name)  # as it is written: ./ too
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
                f"{before}{each}" + ("/" if is_folder else ""),
                "folder" if is_folder else "file",
            )
