"""What a result may exceed its baseline by, as text: ``10%``. Light to import."""

from __future__ import annotations

import re

_PERCENTAGE = re.compile(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*(%?)\s*")


def excess(text: str) -> float:
    """Return the part of a baseline from ``10%`` or ``10``: how much more is allowed.

    Raises:
        ValueError: it is no percentage.
    """
    match = _PERCENTAGE.fullmatch(text)
    if match is None or float(match[1]) > 1e6:
        raise ValueError(f"{text[:20]!r} is not a percentage; write 10%")
    if 0 < float(match[1]) < 1 and not match[2]:
        number = text[:20].strip()
        raise ValueError(f"{number} is {number} %; write that with its sign, or 10%")
    return float(match[1]) / 100
