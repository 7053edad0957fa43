"""``%%cudatime --name NAME`` and ``%cudatime --compare``: named results, shown side by side."""

from __future__ import annotations

import argparse
import difflib
import shlex
from collections.abc import Collection, Iterable
from typing import Any

from gpumagic.errors import SpecError
from gpumagic.magics import terminal
from gpumagic.magics.output import hand_over
from gpumagic.magics.parsing import split
from gpumagic.results import Comparison, CudaTiming
from gpumagic.timing.comparison import compare

#: The options that go with ``--compare``.
_OPTIONS = ("--compare", "-o", "-v", "-q")


def check(given: Collection[str]) -> None:
    """Check that the options given go with ``--compare``.

    Raises:
        SpecError: one does not.
    """
    refused = ", ".join(name for name in given if name not in _OPTIONS)
    if refused:
        raise SpecError(
            f"%cudatime --compare shows named results and runs nothing: leave {refused} out, or "
            "write it where code is run and named, with %%cudatime --name NAME"
        )


def store(magics: Any, name: str | None, result: CudaTiming) -> None:
    """Store ``result`` under a name, in place of an earlier one; without a name, do nothing."""
    if name is not None:
        magics.extension.named_timings[name] = result


def show(magics: Any, words: str, options: argparse.Namespace, *, silent: bool) -> Any:
    """Show the named results, or those that ``words`` choose, side by side.

    Raises:
        SpecError: there is nothing to compare, or no result of a name.
    """
    named: dict[str, CudaTiming] = magics.extension.named_timings
    names = _names(words) or list(named)
    for name in names:
        if name not in named:
            raise SpecError(f"%cudatime --compare: no result is named {name!r}{_hint(name, named)}")
    if len({*names}) < 2 <= len(named):
        others = _written(name for name in named if name not in names)
        raise SpecError(
            f"%cudatime --compare: it takes two named results, and the line names only "
            f"{_written(names[:1])}; add another: {others}"
        )
    if len({*names}) < 2:
        raise SpecError(
            f"%cudatime --compare: it takes two named results, and there is {_list(named)}; "
            "%%cudatime --name NAME names one"
        )
    compared = compare({name: named[name] for name in names})
    returned = hand_over(magics.shell, compared, options, silent=silent)
    if not (options.quiet or silent):
        _show_plot(magics.shell, compared)
    return returned


def _names(words: str) -> list[str]:
    """Split names at commas, or else at blanks; a name that holds one is in quotes."""
    if "," not in words:
        return split(words)
    return [name for part in words.split(",") if (name := " ".join(split(part)))]


def _list(named: dict[str, CudaTiming]) -> str:
    return f"only {_written(named)}" if named else "none"


def _hint(name: str, named: dict[str, CudaTiming]) -> str:
    near = difflib.get_close_matches(name, named, n=1)
    if near:
        return f"; did you mean {_written(near)}?"
    return f"; there {'are' if len(named) != 1 else 'is'} {_written(named) or 'none'}"


def _written(names: Iterable[str]) -> str:
    """Return names as they may be typed."""
    return ", ".join(shlex.quote(name) for name in names)


def _show_plot(shell: Any, compared: Comparison) -> None:
    """Show the plot below the table, in a notebook that has matplotlib."""
    if not hasattr(shell, "kernel"):
        return
    from gpumagic.render import plots

    if plots.available():
        from IPython.display import display

        display(compared.plot())  # type: ignore[no-untyped-call]
    else:
        terminal.write_line("There is no plot without matplotlib: pip install matplotlib")
