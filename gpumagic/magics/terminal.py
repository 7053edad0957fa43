"""Text that is seen in a terminal: whether there is one, its colours, cursor and encoding."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from gpumagic.render.blocks import Block
    from gpumagic.results import Result

#: The ids of requests from `jupyter_client`: of its session, its process, and a number.
_PYTHON_CLIENT = re.compile(r".+_\d+_\d+")


def is_terminal(shell: Any) -> bool:
    """Return whether what the shell prints is seen in a terminal; never that of a kernel."""
    return not hasattr(shell, "kernel") and sys.stdout.isatty()


def is_colored(shell: Any) -> bool:
    """Return whether what is printed is seen in a terminal with colours (https://no-color.org)."""
    if not is_terminal(shell) or shell.colors.lower() == "nocolor":
        return False
    return not os.environ.get("NO_COLOR") and not _is_dumb()


def moves_cursor() -> bool:
    """Return whether standard output is a terminal that moves its cursor on request."""
    return sys.stdout.isatty() and not _is_dumb()


def _is_dumb() -> bool:
    return os.environ.get("TERM") == "dumb"


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
    return text.render(blocks, color=color, wrap=seen)


def mime_bundle(shell: Any, result: Result) -> dict[str, str]:
    """Return a result's MIME bundle, in which the text fits where it is seen."""
    from gpumagic.render import html

    blocks = result._blocks()
    return {"text/plain": printable(drawn(shell, blocks)), "text/html": html.render(blocks)}


def folded(text: str, stream: TextIO, begun: int) -> str:
    """Return a text in lines that fit into the terminal of a stream, if that is one.

    ``begun``: the columns that the first line has already.
    """
    if not stream.isatty():
        return text
    from gpumagic.render.text import columns, fold

    return "\n".join(fold("_" * begun + text, columns()))[begun:]


def write(text: str) -> None:
    """Print a text, in characters that standard output has."""
    print(printable(text), flush=True)


def write_line(line: str) -> None:
    """Print a line; in a terminal it is folded between words."""
    write(folded(line, sys.stdout, 0))


def printable(text: str) -> str:
    """Return a text in the characters that standard output has."""
    from gpumagic.render.text import encodable

    return encodable(text, sys.stdout.encoding)
