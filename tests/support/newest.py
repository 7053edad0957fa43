"""Whether torch is one that words its messages as the committed outputs have them."""

from __future__ import annotations

from importlib.metadata import version

#: Older versions word some of them otherwise.
IS_NEWEST = tuple(map(int, version("torch").split(".")[:2])) >= (2, 12)
