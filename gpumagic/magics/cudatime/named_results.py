"""``%%cudatime --name NAME`` and ``%cudatime --compare``: named results, shown side by side."""

from __future__ import annotations

import argparse
import difflib
import shlex
from collections.abc import Iterable
from typing import Any

from gpumagic.errors import SpecError
from gpumagic.magics import terminal
from gpumagic.magics.output import hand_over
from gpumagic.results import Comparison, CudaTiming
from gpumagic.timing.comparison import compare


def store(magics: Any, name: str | None, result: CudaTiming) -> None:
    """Store ``result`` under a name, in place of an earlier one; without a name, do nothing."""
    if name is not None:
        magics.extension.named_timings[name] = result


def show(magics: Any, options: argparse.Namespace, *, silent: bool) -> Any:
    """Show the named results, or those that the line names, side by side.

    Raises:
        SpecError: there is nothing to compare, or no result of a name.
    """
    named: dict[str, CudaTiming] = magics.extension.named_timings
    names = [name for word in options.names for name in word.split(",") if name] or list(named)
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
