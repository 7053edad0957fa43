"""Show the result of a magic, return it, and store it in a variable."""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Sequence
from contextlib import AbstractContextManager, suppress
from time import perf_counter
from typing import TYPE_CHECKING, Any, TextIO, cast

from gpumagic.errors import GpuMagicWarning, SpecError
from gpumagic.magics import terminal
from gpumagic.magics.shell_state import of
from gpumagic.results.base import Result
from gpumagic.system.import_path import Unrestricted
from gpumagic.system.output import Output
from gpumagic.system.paths import output_path
from gpumagic.system.shell import Shell

if TYPE_CHECKING:
    from gpumagic.render.blocks import Block
    from gpumagic.render.plots import Plot


def show(shell: Shell, result: Result, metadata: dict[str, Any] | None = None) -> None:
    """Display ``result``: HTML and text in a notebook, text in a terminal, in colours where it can.

    ``metadata`` is the output's, for readers of the notebook file.
    """
    _show(shell, result.brief(), metadata)
    # With -o the same object is Out[n], too: the formatter then shows one line of it.
    of(shell).note_displayed(result)


def show_below(shell: Shell, line: Result, metadata: dict[str, Any] | None = None) -> None:
    """Display the line of a cell below it; nothing where quiet is the default."""
    if not of(shell).magics.quiet:
        show(shell, line, metadata)


def say(shell: Shell, line: str) -> None:
    """Show a line of text: what is printed in a notebook is broken within words."""
    from gpumagic.render import text
    from gpumagic.render.blocks import Line

    blocks = [Line.of(line)]
    if hasattr(shell, "kernel"):
        _show(shell, blocks)
    else:
        output = terminal.output_of(shell)
        output.print(text.drawn(blocks, output))


def _show(shell: Shell, blocks: Sequence[Block], metadata: dict[str, Any] | None = None) -> None:
    """Print blocks in a terminal, and display them elsewhere; raises nothing."""
    from gpumagic.render import text

    output = terminal.output_of(shell)
    if output.is_terminal:
        output.print(text.drawn(blocks, output, color=output.has_colors))
        return
    bundle = terminal.mime_bundle(shell, blocks)
    try:
        _display(bundle, metadata)
    except Exception:  # a stream of the user's that cannot be flushed, for example
        output.print(bundle["text/plain"])


def _display(bundle: dict[str, Any], metadata: dict[str, Any] | None = None) -> None:
    from IPython.display import display

    cast(Any, display)(bundle, raw=True, metadata=metadata)


def hand_over(
    shell: Shell,
    result: Result,
    options: argparse.Namespace,
    metadata: dict[str, Any] | None = None,
) -> Any:
    """Show, store and return ``result`` as the options ``-q``, ``-v`` and ``-o`` say."""
    if not options.quiet:
        show(shell, result, metadata)
    return store(shell, result, options)


def store(shell: Shell, result: object, options: argparse.Namespace) -> Any:
    """Store and return ``result`` as the options ``-v`` and ``-o`` say: something else is shown."""
    if options.variable:
        shell.user_ns[options.variable] = result
    return result if options.output else None


def value_of(value: object, result: Result | None, options: argparse.Namespace) -> Any:
    """Return what a magic returns that ran code: the code's value, or for ``-o`` the result.

    Then the value is displayed, and ``_`` is the result that was asked for.
    """
    if not options.output:
        return value
    if value is not None:
        from IPython.display import display

        with Unrestricted():
            display(value)  # type: ignore[no-untyped-call]
    return result


def show_picture(
    shell: Shell, picture: Plot, title: str, file: str | None, command: str, *, quiet: bool
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
        line = terminal.mime_bundle(shell, [Line.of(f"{title}{hint}")])["text/plain"]
        bundle, size = picture.bundle(line)
        _display(bundle, size)


def warn(message: str) -> None:
    """Warn in a line that is shown every time: without a registry in the user's namespace."""
    message = Output(sys.stderr).printable(message)
    warnings.warn_explicit(message, GpuMagicWarning, filename="%gpu", lineno=1, registry=None)


class LiveDisplay(AbstractContextManager["LiveDisplay"]):
    """An output whose content is replaced, and removed at the end.

    In a notebook it is an output with a display id; in a terminal rich moves the cursor.
    """

    def __init__(self, shell: Shell, *, quiet: bool = False, stream: TextIO | None = None) -> None:
        self._notebook = hasattr(shell, "kernel")
        self._output = terminal.output_of(shell, stream)
        #: Whether nothing is shown.
        self.quiet = quiet or not (self._notebook or self._output.is_terminal)
        self._handle: Any = None
        self._live: Any = None

    def text(self, line: str) -> None:
        """Show one line of text."""
        from gpumagic.render.blocks import Line

        self.blocks([Line.of(line)])

    def blocks(self, blocks: Sequence[Block]) -> None:
        """Show blocks."""
        from gpumagic.render import html, text

        if self.quiet:
            return
        try:
            if self._notebook:
                self._update({"text/plain": text.render(blocks), "text/html": html.render(blocks)})
            else:
                self._print(text.drawn(blocks, self._output, color=self._output.has_colors))
        except Exception:  # the user's output has no way for it
            self.quiet = True

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
            console = Console(file=self._output.stream, force_jupyter=False)
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
        live, handle, self._live, self._handle = self._live, self._handle, None, None
        with suppress(Exception):
            if live is not None:
                live.stop()
            if handle is not None:
                handle.update({"text/plain": ""}, raw=True)

    def __exit__(self, *_: object) -> None:
        self.close()


class Progress:
    """The share done and the time elapsed: shown after a second.

    In a terminal on standard error, apart from the output of the timed code.
    """

    #: Seconds before anything is shown, and between two updates.
    DELAY, PERIOD = 1.0, 0.2

    def __init__(self, shell: Shell, *, enabled: bool = True) -> None:
        self._started = perf_counter()
        self._next = self._started + self.DELAY
        self._live = LiveDisplay(shell, quiet=not enabled, stream=sys.stderr)

    def update(self, done: float) -> None:
        """Show that the share ``done``, 0 to 1, is done."""
        now = perf_counter()
        if self._live.quiet or now < self._next:
            return
        from gpumagic.render.blocks import Column, Grid, Styled
        from gpumagic.render.units import seconds, share

        self._next = now + self.PERIOD
        text = f"{share(min(done, 1.0))} · {seconds(now - self._started)}"
        cells = ("%cudatime", Styled(text, bar=done))
        self._live.blocks([Grid.of([cells], [Column(""), Column("")])])

    def close(self) -> None:
        """Remove what is shown."""
        self._live.close()
