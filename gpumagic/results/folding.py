"""Fold source lines without figures, in tables of lines."""

from __future__ import annotations

from collections.abc import Container, Iterable

#: Of more than so many lines in a row without figures, the first and last few are shown.
_LONGEST, _EDGE = 8, 2


def folded(numbers: Iterable[int], relevant: Container[int]) -> list[int | None]:
    """Return the numbers of the lines to show; None in place of irrelevant ones left out."""
    shown: list[int | None] = []
    irrelevant: list[int | None] = []
    for number in [*numbers, None]:
        if number is not None and number not in relevant:
            irrelevant.append(number)
            continue
        if len(irrelevant) > _LONGEST:
            irrelevant[_EDGE:-_EDGE] = [None]
        shown += irrelevant
        irrelevant = []
        if number is not None:
            shown.append(number)
    return shown
