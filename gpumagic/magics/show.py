"""How a magic hands over its result: on the screen, as a return value, in a variable."""

from __future__ import annotations

import argparse
from typing import Any

from gpumagic.results import Result


def show(shell: Any, result: Result) -> None:
    """Display ``result`` now: HTML and text in a notebook, text in a terminal."""
    from IPython.display import display

    display(result._repr_mimebundle_(), raw=True)
    # With -o the same object comes back as Out[n]; a second table below the first helps nobody.
    shell._gpumagic_shown = (id(result), shell.execution_count)


def hand_over(
    shell: Any, result: Result, options: argparse.Namespace, *, silent: bool = False
) -> Any:
    """Show, store and return ``result`` as the options ``-q``, ``-v`` and ``-o`` say.

    ``silent`` is a trailing ``;``.
    """
    if not (options.quiet or silent):
        show(shell, result)
    if options.variable:
        shell.user_ns[options.variable] = result
    return result if options.output else None


def format_result(shell: Any, result: Result) -> Any:
    """The display formatter of results: one line for one that was shown a moment ago."""
    if getattr(shell, "_gpumagic_shown", None) == (id(result), shell.execution_count):
        return {"text/plain": repr(result)}
    return result._repr_mimebundle_()
