"""File names and values on a magic's line, with the notebook's variables as IPython expands them.

IPython expands no line of ``%%cudatime`` and ``%%gpumem``, because code may follow the options.
"""

from __future__ import annotations

import re
from typing import Any

from gpumagic.errors import SpecError
from gpumagic.system.text import harmless

#: ``$name``, ``{name}`` or ``{name…}``, as they stay where IPython cannot expand them.
_VARIABLE = re.compile(r"\$(?P<name>[^\W\d]\w*)|\{(?P<field>[^\W\d]\w*)[^{}]*\}")
#: More frames than there are: `var_expand` would use the variables of the caller's frame.
_NO_FRAME = 10**6


def expanded(shell: Any, text: str) -> str:
    """Return a file name with ``$name`` and ``{name}`` replaced by the notebook's variables.

    Raises:
        SpecError: there is no such variable, or it cannot be expanded.
    """
    found: str = shell.var_expand(text, depth=_NO_FRAME)
    left = _VARIABLE.search(text)
    if found != text or left is None:  # ``$$name`` has become ``$name``
        return found
    name, dollar = left["name"] or left["field"], left["name"] is not None
    if name not in shell.user_ns:
        hint = f"set {name} first"
    else:  # of ``$name.json`` IPython takes all for an attribute of the variable
        hint = f"write {{{name}}}" if dollar else "this expression fails"
    literally = f"${left[0]}" if dollar else f"{{{left[0]}}}"
    raise SpecError(f"{_refusal(text, left)}; {hint}, or write {literally} for the characters")


def expanded_values(shell: Any, words: list[str]) -> list[str]:
    """Return words with ``$name`` and ``{name}`` replaced; what cannot be replaced stays."""
    return [shell.var_expand(word, depth=_NO_FRAME) for word in words]


def check_expanded(text: str) -> None:
    """Check that no variable was left in a file name, where IPython itself expands the line.

    Raises:
        SpecError: one was.
    """
    left = _VARIABLE.search(text)
    if left is not None:
        raise SpecError(f"{_refusal(text, left)}; set {left['name'] or left['field']} first")


def _refusal(text: str, left: re.Match[str]) -> str:
    return f"{harmless(text, 200)!r} names no file: {left[0]!r} cannot be expanded"
