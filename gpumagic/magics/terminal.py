"""Text that is seen in a terminal: whether there is one, its colours, and its encoding."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpumagic.render.blocks import Block
    from gpumagic.results.base import Result

#: The ids of requests from `jupyter_client`: of its session, its process, and a number.
_PYTHON_CLIENT = re.compile(r".+_\d+_\d+")


def is_terminal(shell: Any) -> bool:
    """Return whether what the shell prints is seen in a terminal; never that of a kernel."""
    return not hasattr(shell, "kernel") and sys.stdout.isatty()


def is_colored(shell: Any) -> bool:
    """Return whether what is printed is seen in a terminal with colours (https://no-color.org)."""
    if not is_terminal(shell) or shell.colors.lower() == "nocolor":
        return False
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def is_console(shell: Any) -> bool:
    """Return whether the current cell comes from a client in a terminal, as ``jupyter console``.

    Such clients ignore updates of an output, and print text as it arrives. They do not identify
    themselves: their requests are those of `jupyter_client`, allow questions on standard input, and
    name no cell as those of notebooks do.
    """
    parent_of = getattr(getattr(shell, "kernel", None), "get_parent", None)
    if parent_of is None:
        return False
    request = parent_of("shell")
    return (
        _PYTHON_CLIENT.fullmatch(str(request.get("header", {}).get("msg_id", ""))) is not None
        and bool(request.get("content", {}).get("allow_stdin"))
        and "cellId" not in request.get("metadata", {})
    )


def drawn(shell: Any, blocks: Sequence[Block], *, color: bool = False) -> str:
    """Return the text of the blocks: where it is seen in a terminal, no word is broken.

    Elsewhere lines stay whole: they may be saved, searched or compared.
    """
    from gpumagic.render import text

    seen = is_terminal(shell) or is_console(shell)
    return text.printable(text.render(blocks, color=color, wrap=seen), sys.stdout.encoding)


def mime_bundle(shell: Any, result: Result) -> dict[str, str]:
    """Return a result's MIME bundle, in which the text fits where it is seen."""
    from gpumagic.render import html

    blocks = result._blocks()
    return {"text/plain": drawn(shell, blocks), "text/html": html.render(blocks)}
