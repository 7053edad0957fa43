"""Show the result of a magic, return it, and store it in a variable."""

from __future__ import annotations

import argparse
import sys
from types import TracebackType
from typing import Any, TypeVar, cast

from gpumagic.magics.extension import find
from gpumagic.results import Result

_Live = TypeVar("_Live", bound="LiveDisplay")


def show(shell: Any, result: Result, metadata: dict[str, Any] | None = None) -> None:
    """Display ``result``: HTML and text in a notebook, text in a terminal.

    ``metadata`` is the output's, for readers of the notebook file.
    """
    from IPython.display import display

    cast(Any, display)(result._repr_mimebundle_(), raw=True, metadata=metadata)
    extension = find(shell)
    if extension is not None:
        # With -o the same object is Out[n], too: the formatter does not show it a second time.
        extension.note_displayed(result)


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


class LiveDisplay:
    """An output whose content is replaced; it is removed at the end unless `keep` is called."""

    def __init__(self, shell: Any, *, quiet: bool = False) -> None:
        self._quiet = quiet
        # A notebook replaces an output; in a terminal the cursor is moved up.
        self._notebook = hasattr(shell, "kernel")
        self._handle: Any = None
        self._lines = 0
        self._remains = False

    def __enter__(self: _Live) -> _Live:
        return self

    def text(self, line: str) -> None:
        """Show one line of text."""
        self._update({"text/plain": line})

    def result(self, result: Result) -> None:
        """Show a result."""
        self._update(result._repr_mimebundle_())

    def keep(self) -> None:
        """Leave the content on the screen at the end."""
        self._remains = True

    def _update(self, bundle: dict[str, str]) -> None:
        if self._quiet:
            return
        if not self._notebook:
            self._erase()
            print(bundle["text/plain"], flush=True)
            self._lines = bundle["text/plain"].count("\n") + 1
        elif self._handle is None:
            from IPython.display import DisplayHandle

            self._handle = cast(Any, DisplayHandle)()
            self._handle.display(bundle, raw=True)
        else:
            self._handle.update(bundle, raw=True)

    def _erase(self) -> None:
        if self._lines and sys.stdout.isatty():
            print(f"\x1b[{self._lines}F\x1b[J", end="", flush=True)
        self._lines = 0

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._remains:
            return
        self._erase()
        if self._handle is not None:
            self._handle.update({"text/plain": ""}, raw=True)
