"""What a magic found is shown, stored and returned, as the options of its line say."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from gpumagic.errors import GpuMagicWarning, SpecError
from gpumagic.magics.magic_state import MagicState, state_of
from gpumagic.magics.option_forms import Options, PlotOptions
from gpumagic.results.base import Result
from gpumagic.system.output import Output
from gpumagic.system.shell import Shell
from gpumagic.system.text import named

if TYPE_CHECKING:
    from gpumagic.render.blocks import Block
    from gpumagic.render.plots import Plot


def output_of(shell: Shell, stream: object = None) -> Output:
    """Return the stream that a shell prints to, or another one; never a terminal in a kernel."""
    in_kernel = hasattr(shell, "kernel")
    return Output(stream, in_kernel=in_kernel, color=in_kernel or shell.colors.lower() != "nocolor")


def mime_bundle(shell: Shell, blocks: Sequence[Block]) -> dict[str, str]:
    """Return the MIME bundle of blocks, in which the text fits where it is seen."""
    from gpumagic.render import html, text

    return {"text/plain": text.drawn(blocks, output_of(shell)), "text/html": html.render(blocks)}


def show(shell: Shell, result: Result) -> None:
    """Display ``result``: as HTML and text in a notebook, as text in a terminal."""
    _show(shell, result.brief())
    # With -o the same object is Out[n], too: the formatter then shows one line of it.
    state_of(shell).note_displayed(result)


def show_below(shell: Shell, line: Result) -> None:
    """Display the line of a cell below it; nothing where quiet is the default."""
    if not state_of(shell).quiet:
        show(shell, line)


def say(shell: Shell, line: str, *, quiet: bool = False) -> None:
    """Show a line of text; a notebook would break a printed one within words."""
    if not quiet:
        from gpumagic.render.blocks import Line

        _show(shell, [Line.of(line)], printed=not hasattr(shell, "kernel"))


def _show(shell: Shell, blocks: Sequence[Block], *, printed: bool = False) -> None:
    """Print blocks in a terminal, and display them elsewhere; raises nothing."""
    from gpumagic.render import text

    output = output_of(shell)
    if output.is_terminal or printed:
        output.print(text.drawn(blocks, output, color=output.has_colors))
        return
    bundle = mime_bundle(shell, blocks)
    try:
        _display(bundle)
    except Exception:  # a stream of the user's that cannot be flushed, for example
        output.print(bundle["text/plain"])


def _display(bundle: dict[str, Any], metadata: dict[str, Any] | None = None) -> None:
    from IPython.display import display

    cast(Any, display)(bundle, raw=True, metadata=metadata)


def hand_over(shell: Shell, result: Result, options: Options) -> Any:
    """Show, store and return ``result`` as the options ``-q``, ``-v`` and ``-o`` say."""
    if not options.quiet:
        show(shell, result)
    return store(shell, result, options)


def store(shell: Shell, result: object, options: Options) -> Any:
    """Store and return ``result`` as the options ``-v`` and ``-o`` say: something else is shown."""
    if options.variable:
        shell.user_ns[options.variable] = result
    return result if options.output else None


def value_of(value: object, result: Result | None, options: Options) -> Any:
    """Return what a magic returns that ran code: the code's value, or for ``-o`` the result.

    Then the value is displayed, and ``_`` is the result that was asked for.
    """
    if not options.output:
        return value
    if value is not None:
        from IPython.display import display

        display(value)  # type: ignore[no-untyped-call]
    return result


def show_plot(shell: Shell, plot: Plot, title: str, command: str, options: PlotOptions) -> None:
    """Write a plot to a file if one is given, or display it; ``command`` with a file writes one.

    Raises:
        SpecError: the file cannot be written, or has no such format.
    """
    if file := options.file:
        try:
            name = plot.save(file).name
        except ValueError as error:
            raise SpecError(f"cannot write {file}: {error}") from None
        say(shell, f"{title}: written to {Path(file).with_name(name)}", quiet=options.quiet)
    elif not options.quiet:
        from gpumagic.render.blocks import Line

        hint = "" if hasattr(shell, "kernel") else f"; '{command} FILE' writes it to a file"
        line = mime_bundle(shell, [Line.of(f"{title}{hint}")])["text/plain"]
        bundle, size = plot.bundle(line)
        _display(bundle, size)


def warn(message: str) -> None:
    """Warn in a line that is shown every time: without a registry in the user's namespace."""
    message = Output(sys.stderr).printable(message)
    warnings.warn_explicit(message, GpuMagicWarning, filename="%gpu", lineno=1, registry=None)


def format_result(state: MagicState, result: Result) -> dict[str, str]:
    """Return a result's MIME bundle for IPython: one line if its cell has displayed it."""
    if state.has_displayed(result):
        return {"text/plain": repr(result)}
    return mime_bundle(state.shell, result.blocks())


@contextmanager
def saying_failures(shell: Shell) -> Iterator[None]:
    """Say a failure of gpumagic in one line: the code's value or exception stays."""
    try:
        yield
    except Exception as failure:
        say(shell, f"gpumagic: cannot show the result ({named(failure)})")
