"""``%gpu`` and ``%%gpu``: the device table, and which devices this kernel sees."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gpumagic.cells.semicolon import take_semicolon
from gpumagic.errors import SpecError
from gpumagic.magics.gpu import cluster_options, device_table
from gpumagic.magics.gpu import options as gpu_options
from gpumagic.magics.gpu.options import parser
from gpumagic.magics.output import hand_over
from gpumagic.magics.parsing import help_hint, split
from gpumagic.results.base import Result
from gpumagic.results.selection import Selection
from gpumagic.selection.spec import parse


def help_text() -> str:
    """Return what ``%gpu?`` shows."""
    return parser().format_help()


def run(magics: Any, line: str, cell: str | None, local_ns: Any = None) -> Any:
    """Show the table, choose devices, or run ``cell`` under a choice."""
    __tracebackhide__ = True
    header = f"%%gpu {line}"
    line, silent = take_semicolon(line)
    options = parser().parse_words(split(line))
    given = parser().given(options)
    options.quiet = options.quiet or magics.quiet
    text = " ".join(options.spec)
    if text == "help":
        raise SpecError(help_hint("%gpu"))
    if options.cluster or (options.spec and options.spec[0] in cluster_options.VERBS):
        if cell is not None:
            raise SpecError("%%gpu is for this kernel; %gpu … --cluster chooses for the engines")
        from gpumagic.magics.gpu import choosing, cluster

        wants = choosing.wants(options, magics, text)
        return cluster.run(magics, options, given, wants, silent=silent)
    cluster_options.check_unused(given)
    gpu_options.check_verb(options.spec)
    verb = _verb(options.spec)
    if cell is not None and verb is not None:
        raise SpecError("%%gpu needs a choice of GPUs for the cell; for example: %%gpu off")
    gpu_options.check(options, given, text, is_choice=verb is None, one_cell=cell is not None)
    result: Result
    if verb is not None:
        options.quiet = options.quiet or silent
        result = verb(magics.shell, options)
    else:
        from gpumagic.magics.gpu import choosing

        spec, wants = parse(text), choosing.wants(options, magics, text)
        if cell is not None:
            from gpumagic.magics.gpu import single_cell

            return single_cell.run(magics.shell, spec, wants, options, cell, header)
        result = choosing.choose_for_kernel(magics, spec, wants, options, silent=silent)
    returned = hand_over(magics.shell, result, options, silent=silent)
    if isinstance(result, Selection):
        choosing.warn(result, shown=not (options.quiet or silent))
    return returned


def _diagnosis(shell: Any, options: argparse.Namespace) -> Result:
    from gpumagic.doctor import diagnose

    return diagnose()


def _watch(shell: Any, options: argparse.Namespace) -> Result:
    from gpumagic.magics.gpu import watch

    return watch.watch(shell, options)


def _watch_off(shell: Any, options: argparse.Namespace) -> Result:
    from gpumagic.magics.gpu import watch

    return watch.watch_off(shell, options)


def _plot(shell: Any, options: argparse.Namespace) -> Result:
    from gpumagic.magics.gpu import watch

    return watch.plot(shell, options, options.spec[1:])


def _shutdown(shell: Any, options: argparse.Namespace) -> Result:
    from gpumagic.magics.gpu import notebooks

    return notebooks.shutdown(shell, " ".join(options.spec[1:]), options)


def _verb(words: Sequence[str]) -> Callable[[Any, argparse.Namespace], Result] | None:
    """Return the function of a line that is no choice of GPUs; None for one that is."""
    with_words = {"plot": _plot, "shutdown": _shutdown}.get(words[0]) if words else None
    return with_words or _VERBS.get(" ".join(words))


#: The lines that are no choice of GPUs, and the function of each.
_VERBS: Mapping[str, Callable[[Any, argparse.Namespace], Result]] = {
    "": device_table.table,
    "ps": device_table.table_with_processes,
    "watch": _watch,
    "watch off": _watch_off,
    "doctor": _diagnosis,
}
