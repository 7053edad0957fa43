"""``%gpu`` and ``%%gpu``: the device table, and which devices this kernel sees."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache
from typing import Any

from gpumagic.errors import SpecError
from gpumagic.magics.gpu import (
    choosing,
    cluster,
    device_table,
    notebooks,
    single_cell,
)
from gpumagic.magics.gpu import options as gpu_options
from gpumagic.magics.output import hand_over
from gpumagic.magics.parsing import Parser, add_result_options, split, take_semicolon
from gpumagic.results import Result
from gpumagic.selection.spec import parse

_EXAMPLES = """\
examples:
  %gpu                        the table of devices
  %gpu -p                     with the processes on them
  %gpu off                    hide every GPU from this kernel
  %gpu 0,2                    show it GPUs 0 and 2, as nvidia-smi numbers them
  %gpu 1-3                    a range
  %gpu GPU-8f1d               a UUID, or a unique beginning of one
  %gpu auto                   the GPU with the most free memory
  %gpu auto 2 --min-free 20GiB --max-util 10 --wait 600
  %gpu on                     show all; %gpu reset: what the kernel was started with
  %gpu watch                  a panel that is updated while cells run; %gpu watch off ends it
  %gpu plot                   what it saw: the time since it began, with the cells
  %gpu ps --mine              your own notebooks, with the GPU memory that each holds
  %gpu shutdown train.ipynb   end one of them, by its Jupyter server
  %gpu doctor                 why torch can, or cannot, use the GPU here; what to do about it
  %gpu off --threads 4        compute on the CPU, with 4 threads
  selection = %gpu off -o -q  the result as an object

  %gpu off --restart          too late: a fresh kernel in place of this one; the next cells go on
  %gpu off --restart --keep model optimizer
  %gpu reset --restart --keep all --blocking   CUDA has failed; and find out why
  %gpu off --soft             too late, and nothing may be lost: a gate; %gpu on lifts it

  %%gpu off                   one cell without a GPU; then what was there before

  %gpu cluster                the GPUs of ipyparallel's engines, on all their hosts
  %gpu pin                    each engine its own GPU; %gpu off --cluster: none for any
  %gpu dist init              torch.distributed's process group of the engines; %gpu dist down
"""


_DESCRIPTION = """\
Show the GPUs, or choose which of them this kernel sees, and verify it.

choices of GPUs, with the numbers of nvidia-smi:
  0    0,2    1-3       an index, a list, a range
  GPU-8f1d…, MIG-…      a UUID, or a unique beginning of one
  auto [N]              the GPU, or N GPUs, with the most free memory
  off                   none (also: none, cpu)
  on                    all (also: all)
  reset                 what the kernel was started with

verbs:
  ps                    the table with processes, as with -p; --mine: your own notebooks
  shutdown NOTEBOOK     end one of your own notebooks, by its Jupyter server
  watch, watch off      a panel that is updated while cells run (in a terminal: the table, repeated
                        until interrupted)
  plot [FILE]           a picture of what was watched (-o: the samples)
  doctor                why torch can, or cannot, use the GPU here; what to do about it
  cluster [PROFILE]     the GPUs of ipyparallel's engines; or the path of a connection file
  pin                   each engine its own GPU
  dist init, dist down  torch.distributed's process group of the engines
"""


@cache
def parser() -> Parser:
    """Return the parser of the options of ``%gpu``."""
    made = Parser(
        "%gpu",
        usage="%(prog)s [SPEC] [options]",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
    )
    gpu_options.add_options(made)
    cluster.add_options(made)
    add_result_options(made)
    return made


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
    if options.cluster or (options.spec and options.spec[0] in cluster.VERBS):
        if cell is not None:
            raise SpecError("%%gpu is for this kernel; %gpu … --cluster chooses for the engines")
        wants = gpu_options.wants(options, magics, text)
        return cluster.run(magics, options, given, wants, silent=silent)
    cluster.check_unused(given)
    verb = _verb(options.spec)
    if cell is not None and verb is not None:
        raise SpecError("%%gpu needs a choice of GPUs for the cell; for example: %%gpu off")
    gpu_options.check(options, given, text, is_choice=verb is None, one_cell=cell is not None)
    result: Result
    if verb is not None:
        options.quiet = options.quiet or silent
        result = verb(magics.shell, options)
    else:
        spec, wants = parse(text), gpu_options.wants(options, magics, text)
        if cell is not None:
            return single_cell.run(magics.shell, spec, wants, options, cell, header)
        result = choosing.choose_for_kernel(magics, spec, wants, options, silent=silent)
    return hand_over(magics.shell, result, options, silent=silent)


def without_effect(words: Sequence[str], given: Collection[str], *, one_cell: bool) -> set[str]:
    """Return the options, by first name, that `run` would refuse beside these words and options."""
    if not words and not one_cell:
        return set()  # the verb may follow
    if not one_cell and ("--cluster" in given or words[0] in cluster.VERBS):
        return cluster.without_effect(words[0].lower(), words[1:])
    is_choice = not words or _verb(words) is None
    found = gpu_options.without_effect(
        given, " ".join(words), is_choice=is_choice, one_cell=one_cell
    )
    no_cluster = one_cell or not is_choice
    return {*found, *cluster.ONLY_THERE, *(["--cluster"] if no_cluster else [])}


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
