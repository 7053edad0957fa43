"""Show the result of a magic, return it, and store it in a variable."""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Sequence
from contextlib import AbstractContextManager
from time import perf_counter
from typing import TYPE_CHECKING, Any, TextIO, cast

from gpumagic.errors import GpuMagicWarning, SpecError
from gpumagic.magics import terminal
from gpumagic.magics.extension import find
from gpumagic.results.base import Result
from gpumagic.system.paths import output_path

if TYPE_CHECKING:
    from gpumagic.render.blocks import Block


def show(shell: Any, result: Result, metadata: dict[str, Any] | None = None) -> None:
    """Display ``result``: HTML and text in a notebook, text in a terminal, in colours where it can.

    ``metadata`` is the output's, for readers of the notebook file.
    """
    blocks = result._blocks()
    if terminal.is_terminal(shell):
        print(terminal.drawn(shell, blocks, color=terminal.is_colored(shell)), flush=True)
    else:
        _display(terminal.mime_bundle(shell, blocks), metadata)
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
    if hasattr(shell, "kernel"):
        _display(terminal.mime_bundle(shell, blocks))
    else:
        print(terminal.drawn(shell, blocks), flush=True)


def _display(bundle: dict[str, Any], metadata: dict[str, Any] | None = None) -> None:
    from IPython.display import display

    cast(Any, display)(bundle, raw=True, metadata=metadata)


def hand_over(
    shell: Any, result: Result, options: argparse.Namespace, metadata: dict[str, Any] | None = None
) -> Any:
    """Show, store and return ``result`` as the options ``-q``, ``-v`` and ``-o`` say."""
    if not options.quiet:
        show(shell, result, metadata)
    if options.variable:
        shell.user_ns[options.variable] = result
    return result if options.output else None


def show_picture(
    shell: Any, picture: Any, title: str, file: str | None, command: str, *, quiet: bool
) -> None:
    """Write a picture to ``file`` if it is given, or display it; ``command`` would write one.

    Raises:
        SpecError: the file cannot be written, or has no such format.
    """
    if file:
        path = output_path(file)
        try:
            picture.save(path)
        except (OSError, ValueError) as error:
            raise SpecError(f"cannot write {path}: {error}") from None
        if not quiet:
            say(shell, f"{title}: written to {path}")
    elif not quiet:
        from gpumagic.render.blocks import Line

        hint = "" if hasattr(shell, "kernel") else f"; '{command} FILE' writes it to a file"
        bundle, size = picture.bundle(terminal.drawn(shell, [Line.of(f"{title}{hint}")]))
        _display(bundle, size)


def warn(message: str) -> None:
    """Warn in a line that is shown every time: without a registry in the user's namespace."""
    warnings.warn_explicit(message, GpuMagicWarning, filename="%gpu", lineno=1, registry=None)


class LiveDisplay(AbstractContextManager["LiveDisplay"]):
    """An output whose content is replaced, and removed at the end.

    In a notebook it is an output with a display id; in a terminal rich moves the cursor.
    """

    def __init__(self, shell: Any, *, quiet: bool = False, stream: TextIO | None = None) -> None:
        self._quiet = quiet
        self._notebook = hasattr(shell, "kernel")
        self._stream = stream or sys.stdout
        self._color = terminal.is_colored(shell)
        self._handle: Any = None
        self._live: Any = None

    def text(self, line: str) -> None:
        """Show one line of text."""
        from gpumagic.render.blocks import Line

        self.blocks([Line.of(line)])

    def blocks(self, blocks: Sequence[Block]) -> None:
        """Show blocks."""
        from gpumagic.render import html, text

        if self._quiet:
            return
        if self._notebook:
            self._update({"text/plain": text.render(blocks), "text/html": html.render(blocks)})
            return
        shown = text.render(blocks, color=self._color, wrap=True)
        self._print(text.printable(shown, self._stream.encoding))

    def _update(self, bundle: dict[str, str]) -> None:
        if self._handle is None:
            from IPython.display import DisplayHandle

            self._handle = cast(Any, DisplayHandle)()
            self._handle.display(bundle, raw=True)
        else:
            self._handle.update(bundle, raw=True)

    def _print(self, shown: str) -> None:
        from rich.console import Console
        from rich.live import Live
        from rich.text import Text

        if self._live is None:
            # A stream that is no terminal gets nothing.
            console = Console(file=self._stream, force_jupyter=False)
            # Not refreshed by a thread; the user's own output is not rich's to redirect.
            self._live = Live(
                console=console,
                auto_refresh=False,
                transient=True,
                redirect_stdout=False,
                redirect_stderr=False,
            )
            self._live.start()
        self._live.update(Text.from_ansi(shown), refresh=True)

    def close(self) -> None:
        """Remove the content."""
        if self._live is not None:
            self._live.stop()
            self._live = None
        if self._handle is not None:
            self._handle.update({"text/plain": ""}, raw=True)
            self._handle = None

    def __exit__(self, *_: object) -> None:
        self.close()


class Progress:
    """The share done and the time elapsed: shown after a second.

    In a terminal on standard error, apart from the output of the timed code.
    """

    #: Seconds before anything is shown, and between two updates.
    DELAY, PERIOD = 1.0, 0.2

    def __init__(self, shell: Any, *, enabled: bool = True, what: str = "%cudatime") -> None:
        in_kernel = getattr(shell, "kernel", None) is not None
        self._enabled = enabled and (in_kernel or sys.stderr.isatty())
        self._started = perf_counter()
        self._next = self._started + self.DELAY
        self._live = LiveDisplay(shell, stream=sys.stderr)
        self._what = what

    def update(self, done: float) -> None:
        """Show that the share ``done``, 0 to 1, is done."""
        now = perf_counter()
        if not self._enabled or now < self._next:
            return
        from gpumagic.render.blocks import Cell, Column, Grid
        from gpumagic.render.units import seconds, share

        self._next = now + self.PERIOD
        text = f"{share(min(done, 1.0))} · {seconds(now - self._started)}"
        cells = (self._what, Cell(text, bar=done))
        self._live.blocks([Grid.of([cells], [Column("Magic"), Column("Done")], header=False)])

    def close(self) -> None:
        """Remove what is shown."""
        self._live.close()
