"""Show the result of a magic, return it, and store it in a variable."""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar, cast

from gpumagic.errors import GpuMagicWarning, SpecError
from gpumagic.magics import terminal
from gpumagic.magics.extension import find
from gpumagic.results.base import Result

if TYPE_CHECKING:
    from gpumagic.render.blocks import Block

_Live = TypeVar("_Live", bound="LiveDisplay")


def show(shell: Any, result: Result, metadata: dict[str, Any] | None = None) -> None:
    """Display ``result``: HTML and text in a notebook, text in a terminal, in colours where it can.

    ``metadata`` is the output's, for readers of the notebook file.
    """
    if terminal.is_terminal(shell):
        color = terminal.is_colored(shell)
        terminal.write(terminal.drawn(shell, result._blocks(), color=color))
    else:
        from IPython.display import display

        cast(Any, display)(terminal.mime_bundle(shell, result), raw=True, metadata=metadata)
    extension = find(shell)
    if extension is not None:
        # With -o the same object is Out[n], too: the formatter then shows one line of it.
        extension.note_displayed(result)


def show_below(shell: Any, line: Result, metadata: dict[str, Any] | None = None) -> None:
    """Display the line of a cell below it; nothing where quiet is the default."""
    extension = find(shell)
    if extension is None or not extension.magics.quiet:
        show(shell, line, metadata)


def say(shell: Any, line: str) -> None:
    """Show a line of text: what is printed in a notebook is broken within words."""
    from gpumagic.render.blocks import Line

    blocks = [Line.of(line)]
    shown = terminal.drawn(shell, blocks)
    if not hasattr(shell, "kernel"):
        terminal.write(shown)
        return
    from IPython.display import display

    from gpumagic.render import html

    bundle = {"text/plain": shown, "text/html": html.render(blocks)}
    cast(Any, display)(bundle, raw=True)


def hand_over(
    shell: Any,
    result: Result,
    options: argparse.Namespace,
    *,
    silent: bool = False,
    metadata: dict[str, Any] | None = None,
) -> Any:
    """Show, store and return ``result`` as the options ``-q``, ``-v`` and ``-o`` say.

    ``silent`` is a trailing ``;``.
    """
    if not (options.quiet or silent):
        show(shell, result, metadata)
    if options.variable:
        shell.user_ns[options.variable] = result
    return result if options.output else None


def show_picture(shell: Any, picture: Any, title: str, path: Path | None, command: str) -> None:
    """Display a picture, or say that it was written to ``path``; ``command`` would write one."""
    if path is not None:
        say(shell, f"{title}: written to {path}")
        return
    from IPython.display import display

    from gpumagic.render.blocks import Line

    hint = "" if hasattr(shell, "kernel") else f"; '{command} FILE' writes it to a file"
    text = terminal.printable(terminal.drawn(shell, [Line.of(f"{title}{hint}")]))
    bundle, size = picture.bundle(text)
    cast(Any, display)(bundle, raw=True, metadata=size)


def write_picture(picture: Any, path: Path) -> None:
    """Write a picture to a file.

    Raises:
        SpecError: there is no space left, or no such format.
    """
    try:
        picture.save(path)
    except (OSError, ValueError) as error:
        raise SpecError(f"cannot write {path}: {error}") from None


def warn(message: str) -> None:
    """Warn in a line that is shown every time: without a registry in the user's namespace."""
    message = terminal.folded(message, sys.stderr, len(f"%gpu:1: {GpuMagicWarning.__name__}: "))
    warnings.warn_explicit(message, GpuMagicWarning, filename="%gpu", lineno=1, registry=None)


class LiveDisplay:
    """An output whose content is replaced; it is removed at the end unless `keep` is called."""

    def __init__(self, shell: Any, *, quiet: bool = False, console: bool = False) -> None:
        """Make the output; ``console``: a kernel's client shows text in a terminal."""
        self._quiet = quiet
        # A notebook replaces an output; in a terminal the cursor is moved up.
        self._notebook = hasattr(shell, "kernel") and not console
        self._console = console
        self._handle: Any = None
        self._color = terminal.is_colored(shell)
        #: The rows of the terminal that are printed, and the whole text if they are its beginning.
        self._rows = 0
        self._whole: str | None = None
        self._remains = False

    def __enter__(self: _Live) -> _Live:
        return self

    def text(self, line: str) -> None:
        """Show one line of text."""
        self._update({"text/plain": line})

    def result(self, result: Result) -> None:
        """Show a result."""
        self.blocks(result._blocks())

    def blocks(self, blocks: Sequence[Block]) -> None:
        """Show blocks."""
        from gpumagic.render import html, text

        if self._notebook:
            self._update({"text/plain": text.render(blocks), "text/html": html.render(blocks)})
        else:
            drawn = text.render(blocks, color=self._color, wrap=True)
            self._update({"text/plain": drawn})

    def close(self) -> None:
        """Remove the content, unless `keep` was called."""
        if self._remains:
            if self._whole is not None:
                self._erase()
                terminal.write(self._whole)
            return
        self._erase()
        if self._handle is not None:
            self._handle.update({"text/plain": ""}, raw=True)
            self._handle = None

    def keep(self) -> None:
        """Leave the content on the screen at the end."""
        self._remains = True

    def _update(self, bundle: dict[str, str]) -> None:
        if self._quiet:
            return
        if not self._notebook:
            self._erase()
            self._print(bundle["text/plain"])
        elif self._handle is None:
            from IPython.display import DisplayHandle

            self._handle = cast(Any, DisplayHandle)()
            self._handle.display(bundle, raw=True)
        else:
            self._handle.update(bundle, raw=True)

    def _print(self, text: str) -> None:
        """Print the rows that fit on the screen: rows above it cannot be replaced."""
        from gpumagic.render.text import fold, screen

        columns, most = screen()
        rows = fold(text, columns)
        self._whole = None
        if self._replaces() and len(rows) >= most:
            rows, self._whole = rows[: max(most - 1, 1)], text
        terminal.write("\n".join(rows))
        self._rows = len(rows)

    def _replaces(self) -> bool:
        return self._console or terminal.moves_cursor()

    def _erase(self) -> None:
        if self._rows and self._replaces():
            print(f"\x1b[{self._rows}F\x1b[J", end="", flush=True)
        self._rows = 0

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
