"""An output whose content is replaced, and removed at the end: what is waited for, and how far."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, suppress
from typing import TYPE_CHECKING, Any, TextIO, cast

from gpumagic.magics.delivery import output_of
from gpumagic.system.shell import Shell

if TYPE_CHECKING:
    from gpumagic.render.blocks import Block


class LiveDisplay(AbstractContextManager["LiveDisplay"]):
    """An output whose content is replaced, and removed at the end.

    In a notebook it is an output with a display id; in a terminal rich moves the cursor.
    """

    def __init__(self, shell: Shell, *, quiet: bool = False, stream: TextIO | None = None) -> None:
        self._notebook = hasattr(shell, "kernel")
        self._output = output_of(shell, stream)
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
