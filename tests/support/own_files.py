"""Find the package's own files in what is shown, wherever the checkout is."""

from __future__ import annotations

import re

from tests.support.kernels import ROOT

_NAMES = "|".join(re.escape(each.name) for each in (ROOT / "gpumagic").iterdir())
#: A checkout may have the package's name too, and its environment and tests are below it.
_OURS = re.compile(rf"gpumagic[/\\](?:{_NAMES})\b")


def names_our_files(text: str) -> bool:
    """Return whether a text, such as a traceback, names a file of the package."""
    return _OURS.search(text) is not None
