"""Parts of sentences: counts with their nouns, lists of names, the word that was meant."""

from __future__ import annotations

import difflib
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import TypeVar

_Key = TypeVar("_Key", bound=Hashable)


def listed(names: Sequence[str], most: int = 8) -> str:
    """Return the names, or the first ``most`` of them and how many more there are."""
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most:,} more"


def with_reasons(reasons: Mapping[str, str], most: int | None = None) -> list[str]:
    """Return the names with their reasons: ``a, b (a lock)``, a text for each reason.

    Of many that have the same reason the first ``most`` are listed.
    """
    together = dict[str, list[str]]()
    for name, reason in reasons.items():
        together.setdefault(reason, []).append(name)
    return [f"{listed(names, most or len(names))} ({reason})" for reason, names in together.items()]


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return a hint at the known word that is like ``word``; empty where none is."""
    near = difflib.get_close_matches(word, known, n=1, cutoff=0.7)
    return f"; did you mean {near[0]}?" if near else ""


def grouped(pairs: Iterable[tuple[_Key, int]]) -> dict[_Key, list[int]]:
    """Return the numbers that go with each key, in the order in which they came, each once."""
    numbers: dict[_Key, dict[int, None]] = {}
    for key, number in pairs:
        numbers.setdefault(key, {})[number] = None
    return {key: [*found] for key, found in numbers.items()}


def plural(count: int, one: str, many: str | None = None) -> str:
    """Return a count with its noun: ``1 GPU``, ``2 GPUs``, ``1,024 GPUs``."""
    return f"{count:,} {noun(count, one, many)}"


def noun(count: int, one: str, many: str | None = None) -> str:
    """Return the form of a noun that agrees with ``count``; ``many`` if it is not ``one`` + s."""
    return one if count == 1 else many or f"{one}s"
