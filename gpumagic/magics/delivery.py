"""What a magic found is shown, stored and returned; written to a file, and compared with one."""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from gpumagic.errors import GpuMagicWarning, RegressionError, SpecError
from gpumagic.magics.shell_state import ShellState, of
from gpumagic.results.base import Result, differences
from gpumagic.system import text
from gpumagic.system.output import Output
from gpumagic.system.shell import Shell
from gpumagic.system.writing import output_path

if TYPE_CHECKING:
    from gpumagic.render.blocks import Block
    from gpumagic.render.plots import Plot

# --- shown ----------------------------------------------------------------------------------------


def output_of(shell: Shell, stream: object = None) -> Output:
    """Return the stream that a shell prints to, or another one; never a terminal in a kernel."""
    in_kernel = hasattr(shell, "kernel")
    return Output(stream, in_kernel=in_kernel, color=in_kernel or shell.colors.lower() != "nocolor")


def mime_bundle(shell: Shell, blocks: Sequence[Block]) -> dict[str, str]:
    """Return the MIME bundle of blocks, in which the text fits where it is seen."""
    from gpumagic.render import html, text

    return {"text/plain": text.drawn(blocks, output_of(shell)), "text/html": html.render(blocks)}


def show(shell: Shell, result: Result, metadata: dict[str, Any] | None = None) -> None:
    """Display ``result``: HTML and text in a notebook, text in a terminal, in colours where it can.

    ``metadata`` is the output's, for readers of the notebook file.
    """
    _show(shell, result.brief(), metadata)
    # With -o the same object is Out[n], too: the formatter then shows one line of it.
    of(shell).note_displayed(result)


def show_below(shell: Shell, line: Result, metadata: dict[str, Any] | None = None) -> None:
    """Display the line of a cell below it; nothing where quiet is the default."""
    if not of(shell).quiet:
        show(shell, line, metadata)


def say(shell: Shell, line: str) -> None:
    """Show a line of text: what is printed in a notebook is broken within words."""
    from gpumagic.render.blocks import Line

    _show(shell, [Line.of(line)], printed=not hasattr(shell, "kernel"))


def _show(
    shell: Shell,
    blocks: Sequence[Block],
    metadata: dict[str, Any] | None = None,
    *,
    printed: bool = False,
) -> None:
    """Print blocks in a terminal, and display them elsewhere; raises nothing."""
    from gpumagic.render import text

    output = output_of(shell)
    if output.is_terminal or printed:
        output.print(text.drawn(blocks, output, color=output.has_colors))
        return
    bundle = mime_bundle(shell, blocks)
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
        try:
            path = picture.save(file)
        except ValueError as error:
            raise SpecError(f"cannot write {file}: {error}") from None
        if not quiet:
            say(shell, f"{title}: written to {_named(path)}")
    elif not quiet:
        from gpumagic.render.blocks import Line

        hint = "" if hasattr(shell, "kernel") else f"; '{command} FILE' writes it to a file"
        line = mime_bundle(shell, [Line.of(f"{title}{hint}")])["text/plain"]
        bundle, size = picture.bundle(line)
        _display(bundle, size)


def warn(message: str) -> None:
    """Warn in a line that is shown every time: without a registry in the user's namespace."""
    message = Output(sys.stderr).printable(message)
    warnings.warn_explicit(message, GpuMagicWarning, filename="%gpu", lineno=1, registry=None)


def format_result(state: ShellState, result: Result) -> dict[str, str]:
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
        say(shell, f"gpumagic: cannot show the result ({text.named(failure)})")


# --- of code that was measured --------------------------------------------------------------------


class Delivery:
    """What the options of one line or cell ask for once its result is there.

    The files of ``--save`` and ``--against`` are checked and read before the code runs.

    Raises:
        SpecError: a file that cannot be read or written.
    """

    #: Of the results in the files; their name, and that of the others that may be in them.
    kind: type[Any]
    others: str
    #: Compares a result with the stored one.
    compare: Callable[[Any, Any], Result]
    #: Raises where what was compared is worse than allowed, or returns why that is not known.
    check: Callable[[Any, float], str | None]

    def __init__(self, magics: ShellState, options: argparse.Namespace) -> None:
        self.magics, self.shell, self.options = magics, magics.shell, options
        self._target: Path | None = None if options.save is None else output_path(options.save)
        #: The stored result.
        self.before: Any = None if options.against is None else self._stored(options.against)

    def _stored(self, name: str) -> Any:
        """Return the result in a file; where there is no such file, that of ``--name``."""
        from gpumagic.results.comparison import load

        named = self.magics.named_timings.get(name)
        stored: Any = load(name) if named is None or Path(name).is_file() else named
        if not isinstance(stored, self.kind):
            raise SpecError(f"--against: {name} holds another result: {self.others}")
        if stored.partial:
            unfinished = "the result of code that did not run to its end"
            raise SpecError(f"--against: {name} holds {unfinished}; save it again")
        return stored

    def deliver(self, result: Any) -> None:
        """Show the result, and store it; nothing if there is none."""
        if result is not None:
            with saying_failures(self.shell):
                hand_over(self.shell, result, self.options)
        if result is None or getattr(result, "partial", False):
            self._say_not_written("the code did not run to its end")

    def finish(self, value: object, result: Any) -> Any:
        """Compare and write a complete result, and return what the magic returns.

        Raises:
            RegressionError: it is worse than allowed.
            SpecError: it cannot be compared, or has no figures to save.
        """
        if result is not None and not getattr(result, "partial", False):
            try:
                self._judge(result)
            except RegressionError:
                # It must not take the place of what it is compared with.
                self._say_not_written("--fail-above failed")
                raise
            if self._target is not None:
                if why := getattr(result, "error", None):
                    raise SpecError(f"--save: {why}: there are no figures to write to a file")
                self._say(f"--save: written to {_named(result.save(self._target))}")
        return value_of(value, result, self.options)

    def _say_not_written(self, why: str) -> None:
        if self._target is not None:
            self._say(f"--save: {_named(self._target)} is not written: {why}")

    def _say(self, line: str) -> None:
        if not self.options.quiet:
            say(self.shell, line)

    def _judge(self, result: Any) -> None:
        """Show the comparison, then check it; not what was measured under other conditions."""
        if self.before is None:
            return
        compared, allowed = self.compare(result, self.before), self.options.fail_above
        if not self.options.quiet:
            show(self.shell, compared)
        if allowed is None:
            return
        others = "; ".join(differences(result.conditions, self.before.conditions))
        unknown: str | None = f"other conditions than those stored: {others}"
        if not others:
            unknown = self.check(compared, allowed)
        if unknown is not None:  # also with -q: the cell passes unchecked
            say(self.shell, f"--fail-above was not applied: {unknown}")


def _named(path: Path) -> Path:
    """Return how a message names a file: within the working folder by its name there."""
    with suppress(ValueError, OSError):
        return path.relative_to(Path.cwd())
    return path
