"""A stream that text is printed to: what it can show; printing to it raises nothing.

The stream is the user's, who may have put any object with a ``write`` in the place of
``sys.stdout``, may have closed it, or have redirected it to a file of another encoding.
"""

from __future__ import annotations

import codecs
import os
import shutil
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

#: Characters of ours that mean something, and what stands for them where they are missing.
_PLAIN = str.maketrans("≤≥─┃−–—·µ×✗✓→└█▓▒░▏▎▍▌▋▊▉", "<>-|---|uxx+>-#=-.#######", "°") | {
    ord("…"): "...",
    ord("±"): "+/-",
}
#: The width of text that is not printed to a terminal.
_WIDTH = 80


class Output:
    """A stream of text, by default the one that is ``sys.stdout`` now.

    ``in_kernel`` is whether a notebook shows it; ``color`` whether it may have colours where it is
    seen in a terminal that has them (https://no-color.org).
    """

    def __init__(self, stream: Any = None, *, in_kernel: bool = False, color: bool = True) -> None:
        self.stream = sys.stdout if stream is None else stream
        self.is_terminal = not in_kernel and _known(lambda: self.stream.isatty()) is True
        plain = bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM") == "dumb"
        self.has_colors = self.is_terminal and color and not plain
        #: Python's name of it; None where the stream does not say it.
        self.encoding: str | None = _known(lambda: codecs.lookup(self.stream.encoding).name)

    @property
    def width(self) -> int:
        """The columns of text: ``COLUMNS`` if set, else those of the terminal printed to.

        A kernel prints to no terminal: the one in which its server was started shows no output.
        """
        if os.environ.get("COLUMNS", "").isdecimal() or self.stream is sys.__stdout__:
            return shutil.get_terminal_size((_WIDTH, 25)).columns
        return _WIDTH

    def printable(self, text: str) -> str:
        """Return a text in the characters that the stream has."""
        encoding = self.encoding or "utf-8"
        try:
            return text.encode(encoding).decode(encoding)
        except UnicodeError:
            return text.translate(_PLAIN).encode(encoding, "replace").decode(encoding)

    def print(self, text: str, end: str = "\n") -> None:
        """Print a text and end its line, where that is possible at all."""
        # Where the stream does not say what it can write, it may fail for other characters.
        for line in (
            self.printable(text),
            text.translate(_PLAIN).encode("ascii", "replace").decode(),
        ):
            try:
                self.stream.write(f"{line}{end}")
            except UnicodeError:
                continue
            except Exception:  # closed, or the disk is full: nobody is there to be told
                return
            break
        with suppress(Exception):
            self.stream.flush()


def _known(read: Callable[[], Any]) -> Any:
    """Return what can be read of the stream; None where it has no such attribute, or is closed."""
    try:
        return read()
    except Exception:
        return None


def complain(text: str) -> None:
    """Print a line on standard error."""
    Output(sys.stderr).print(text)
