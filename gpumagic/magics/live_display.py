"""A line whose text is replaced, and removed at the end: what is waited for, and how far."""

from __future__ import annotations

from contextlib import AbstractContextManager, suppress
from typing import Any, TextIO, cast

from gpumagic.magics.delivery import output_of
from gpumagic.system.shell import Shell


class LiveDisplay(AbstractContextManager["LiveDisplay"]):
    """A line whose text is replaced, and removed at the end.

    In a notebook it is an output with a display id; in a terminal rich moves the cursor.
    """

    def __init__(self, shell: Shell, *, quiet: bool = False, stream: TextIO | None = None) -> None:
        self._notebook = hasattr(shell, "kernel")
        self._output = output_of(shell, stream)
        self._quiet = quiet or not (self._notebook or self._output.is_terminal)
        self._handle: Any = None
        self._live: Any = None

    def text(self, line: str) -> None:
        """Show a line of text in place of the one before."""
        if self._quiet:
            return
        try:
            if self._notebook:
                self._display({"text/plain": line})
            else:
                self._print(self._output.printable(line))
        except Exception:  # the user's output has no way for it
            self._quiet = True

    def _display(self, bundle: dict[str, str]) -> None:
        if self._handle is None:
            from IPython.display import DisplayHandle

            self._handle = cast(Any, DisplayHandle)()
            self._handle.display(bundle, raw=True)
        else:
            self._handle.update(bundle, raw=True)

    def _print(self, line: str) -> None:
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
        self._live.update(Text(line), refresh=True)

    def __exit__(self, *_: object) -> None:
        with suppress(Exception):
            if self._live is not None:
                self._live.stop()
            if self._handle is not None:
                self._handle.update({"text/plain": ""}, raw=True)
