"""File names and sizes on a magic's line, with the notebook's variables as IPython expands them.

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
    """Return a text with ``$name`` and ``{name}`` replaced by the notebook's variables.

    Raises:
        SpecError: there is no such variable, or it cannot be expanded.
    """
    found: str = shell.var_expand(text, depth=_NO_FRAME)
    if found == text:  # ``$$name`` has become ``$name``
        check_expanded(text)
    return found


def check_expanded(text: str) -> None:
    """Check that no variable was left in a text, where IPython itself expands the line.

    Raises:
        SpecError: one was.
    """
    left = _VARIABLE.search(text)
    if left is not None:
        name = left["name"] or left["field"]
        raise SpecError(
            f"{harmless(text, 200)!r}: {left[0]!r} cannot be expanded; set {name} first and write "
            f"{{{name}}}, or $$ and {{{{ }}}} for the characters themselves"
        )
