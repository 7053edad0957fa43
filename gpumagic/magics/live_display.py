"""A line whose text is replaced, and removed at the end: what is waited for, and how far."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, TextIO, cast

from gpumagic.magics.delivery import output_of
from gpumagic.system.shell import Shell

#: What removes the text of a terminal's line, and begins it again.
_ERASE = "\r\x1b[2K"


class LiveDisplay(AbstractContextManager["LiveDisplay"]):
    """A line whose text is replaced, and removed at the end.

    In a notebook it is an output with a display id, in a terminal the last line.
    """

    def __init__(self, shell: Shell, *, quiet: bool = False, stream: TextIO | None = None) -> None:
        self._output = output_of(shell, stream)
        self._in_notebook = hasattr(shell, "kernel")
        self._quiet = quiet or not (self._in_notebook or self._output.is_terminal)
        self._is_shown = False
        self._handle: Any = None

    def text(self, line: str) -> None:
        """Show a line of text in place of the one before."""
        if self._quiet:
            return
        self._is_shown = True
        try:
            if not self._in_notebook:
                self._output.print(f"{_ERASE}{line[: self._output.width - 1]}", end="")
            elif self._handle is not None:
                self._handle.update({"text/plain": line}, raw=True)
            else:
                from IPython.display import DisplayHandle

                self._handle = cast(Any, DisplayHandle)()
                self._handle.display({"text/plain": line}, raw=True)
        except Exception:  # the user's output has no way for it
            self._quiet = True

    def __exit__(self, *_: object) -> None:
        if self._is_shown:
            self.text("")
