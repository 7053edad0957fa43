"""Text that is seen in a terminal: whether there is one, its colours, and its encoding."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpumagic.render.blocks import Block


def is_terminal(shell: Any) -> bool:
    """Return whether what the shell prints is seen in a terminal; never that of a kernel."""
    return not hasattr(shell, "kernel") and sys.stdout.isatty()


def is_colored(shell: Any) -> bool:
    """Return whether what is printed is seen in a terminal with colours (https://no-color.org)."""
    if not is_terminal(shell) or shell.colors.lower() == "nocolor":
        return False
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def drawn(shell: Any, blocks: Sequence[Block], *, color: bool = False) -> str:
    """Return the text of the blocks: where it is seen in a terminal, no word is broken.

    Elsewhere lines stay whole: they may be saved, searched or compared.
    """
    from gpumagic.render import text

    shown = text.render(blocks, color=color, wrap=is_terminal(shell))
    return text.printable(shown, sys.stdout.encoding)


def mime_bundle(shell: Any, blocks: Sequence[Block]) -> dict[str, str]:
    """Return the MIME bundle of blocks, in which the text fits where it is seen."""
    from gpumagic.render import html

    return {"text/plain": drawn(shell, blocks), "text/html": html.render(blocks)}
