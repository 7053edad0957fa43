"""The options of ``%gpu``, and which go together: an option without effect is an error.

Light to import: completion does, at a key press.
"""

from __future__ import annotations

import argparse
from collections.abc import Collection, Mapping, Sequence
from functools import cache
from typing import Any

from gpumagic.errors import SpecError
from gpumagic.magics.argument_types import count, duration_or_zero, percentage, size
from gpumagic.magics.gpu import cluster_options
from gpumagic.magics.parsing import Parser, add_result_options
from gpumagic.system.text import harmless

#: The lines that are no choice of GPUs; and the verbs that words of any kind may follow.
VERBS = frozenset({"", "ps", "watch", "watch off", "doctor"})
VERBS_WITH_WORDS = frozenset({"plot", "shutdown"})

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
    _add_options(made)
    cluster_options.add_options(made)
    add_result_options(made)
    return made


def is_verb(words: Sequence[str]) -> bool:
    """Return whether the words are a verb, and no choice of GPUs."""
    return " ".join(words) in VERBS or words[0] in VERBS_WITH_WORDS


def check_verb(words: Sequence[str]) -> None:
    """Refuse what follows a verb that takes nothing, or something else.

    Raises:
        SpecError: the words begin with a verb, and are none.
    """
    if not words or words[0] not in VERBS or is_verb(words):
        return
    verb, rest = words[0], " ".join(words[1:])
    follow = [each.removeprefix(f"{verb} ") for each in VERBS if each.startswith(f"{verb} ")]
    takes = f"only {' or '.join(follow)}" if follow else "nothing more"
    raise SpecError(f"%gpu {verb} takes {takes}: leave {harmless(rest, 60)!r} out")


def _add_options(parser: Parser) -> None:
    """Add the options that are not for clusters."""
    parser.add_argument(
        "spec",
        nargs="*",
        metavar="SPEC",
        help="GPUs to choose, or a verb: see above; without it, the table of devices",
    )
    parser.add_argument("-p", "--processes", action="store_true", help="list processes")
    parser.add_argument(
        "--arguments",
        action="store_true",
        help="with -p: the whole command lines of your own processes; the notebook keeps them",
    )
    parser.add_argument(
        "--mine", action="store_true", help="with ps: your own notebooks, with what each holds"
    )
    parser.add_argument(
        "--yes", action="store_true", help="with shutdown: do not ask whether you are sure"
    )
    parser.add_argument(
        "--soft",
        action="store_true",
        help="a gate inside the process, for when it is too late and the state must be kept: "
        "device-agnostic code goes to the CPU, new CUDA tensors are refused; %%gpu on lifts it",
    )
    parser.add_argument(
        "--threads",
        type=count(most=10**9 - 1, of="threads"),
        metavar="N",
        help="let torch compute with N CPU threads; %%gpu on and reset take that back",
    )
    _add_restart(parser)
    _add_auto(parser)
    _add_watch(parser)


def _add_restart(parser: Parser) -> None:
    group = parser.add_argument_group("restart")
    group.add_argument(
        "--restart",
        action="store_true",
        help="if it is too late, or CUDA has failed, restart the kernel in place: variables are "
        "lost, the next cells run in the new state; must be the last line of its cell",
    )
    group.add_argument(
        "--keep",
        nargs="+",
        action="extend",
        metavar="NAME",
        help="bring these variables back after the restart, or all; with them the globals that "
        "their functions use, imports, random states, and settings of IPython, Python, torch, "
        "NumPy, pandas, matplotlib, warnings and logging, but no hooks and no handlers; "
        "CUDA tensors come back on the same GPU if it is still visible and has the memory, else "
        "on the CPU",
    )
    group.add_argument(
        "--blocking",
        action="store_true",
        help="restart with CUDA_LAUNCH_BLOCKING=1, so that the traceback of a kernel that fails "
        "names its line; slow; the next restart without --blocking ends it",
    )
    group.add_argument(
        "--save",
        action="store_true",
        help="make this choice again when gpumagic loads after a restart of this kernel by its "
        "front end; %%gpu reset --save ends that",
    )
    group.add_argument(
        "--force",
        action="store_true",
        help="restart although running threads, child processes, or variables that cannot be kept "
        "would be lost",
    )


def _add_auto(parser: Parser) -> None:
    group = parser.add_argument_group("auto")
    group.add_argument(
        "--min-free", type=size, metavar="SIZE", help="at least this much free memory (20GiB)"
    )
    group.add_argument(
        "--max-util", type=percentage, metavar="PERCENT", help="at most this utilisation"
    )
    group.add_argument("--idle", action="store_true", help="no other process, and not utilised")
    group.add_argument(
        "--wait", type=duration_or_zero, metavar="SECONDS", default=0.0, help="wait for such GPUs"
    )
    group.add_argument(
        "--no-claim",
        action="store_true",
        help="do not claim what is chosen, and ignore the claims of others; with any choice",
    )


def _add_watch(parser: Parser) -> None:
    group = parser.add_argument_group("watch")
    group.add_argument(
        "--every",
        type=duration_or_zero,
        metavar="SECONDS",
        help="between two updates (default: 1)",
    )
    group.add_argument(
        "--for",
        dest="duration",
        type=duration_or_zero,
        metavar="SECONDS",
        help="stop after this time",
    )


# --- which go together --------------------------------------------------------------------------


def check(
    options: argparse.Namespace,
    given: Mapping[str, Any],
    spec: str,
    *,
    is_choice: bool,
    one_cell: bool,
) -> None:
    """Check that every option that is given, by name, has an effect beside the others.

    ``is_choice``: whether ``spec`` is a choice of GPUs and not a verb.

    Raises:
        SpecError: an option has none; the message says what it goes with.
    """
    rules = _partners(given, spec, is_choice=is_choice, one_cell=one_cell)
    for name, fits, partner in rules:
        if name in given and not fits:
            raise SpecError(f"{name} goes with {partner}")
    if options.soft and options.save:
        raise SpecError("--save is for a choice of devices, not for a gate (--soft): leave one out")
    if options.soft and options.restart:
        raise SpecError("--soft is for going on without a restart: leave --soft or --restart out")
    if options.soft and options.wait > 0:
        raise SpecError("--wait does not go with --soft, which chooses at once: leave one out")


def without_effect(words: Sequence[str], given: Collection[str], *, one_cell: bool) -> set[str]:
    """Return the options, by first name, that are refused beside these words and options."""
    if not words and not one_cell:
        return set()  # the verb may follow
    if not one_cell and words[0] in cluster_options.VERBS:
        return cluster_options.without_effect(words[0], words[1:])
    # --cluster may still follow the options that need it.
    if not one_cell and not {"--cluster", *cluster_options.ONLY_THERE}.isdisjoint(given):
        return cluster_options.without_effect(words[0].lower(), words[1:])
    is_choice = not words or not is_verb(words)
    spec = "shutdown NAME" if [*words] == ["shutdown"] else " ".join(words)
    found = _refused(given, spec, is_choice=is_choice, one_cell=one_cell)
    no_cluster = one_cell or not is_choice
    return {*found, *cluster_options.ONLY_THERE, *(["--cluster"] if no_cluster else [])}


def is_only_here(words: Sequence[str], given: Collection[str]) -> bool:
    """Return whether the words are a verb for this kernel beside an option for clusters."""
    if words[0] in cluster_options.VERBS:
        return False
    for_cluster = {"--cluster", *cluster_options.ONLY_THERE}
    return is_verb(words) and not for_cluster.isdisjoint(given)


def _refused(given: Collection[str], spec: str, *, is_choice: bool, one_cell: bool) -> set[str]:
    """Return the options that `check` would refuse beside those that are given.

    ``--restart`` may still follow the options that need it.
    """
    if not {"--keep", "--blocking", "--force"}.isdisjoint(given):
        given = {*given, "--restart"}
    rules = _partners(given, spec, is_choice=is_choice, one_cell=one_cell)
    found = {name for name, fits, _ in rules if not fits}
    if "--soft" in given:
        found |= _NOT_WITH_SOFT
    if not _NOT_WITH_SOFT.isdisjoint(given):
        found.add("--soft")
    return found


_NOT_WITH_SOFT = {"--save", "--restart", "--wait"}


def _partners(
    given: Collection[str], spec: str, *, is_choice: bool, one_cell: bool
) -> tuple[tuple[str, bool, str], ...]:
    """Return each option by name, whether it has an effect, and what it goes with."""
    lasting = is_choice and not one_cell
    restart = "--restart" in given
    listed = spec == "ps" or "-p" in given
    a_choice = "a choice of GPUs" if not one_cell else "%gpu, not with %%gpu, which is for one cell"
    return (
        ("-p", spec in ("", "ps", "watch"), "the table; for example: %gpu -p"),
        ("--arguments", listed, "the processes: %gpu -p --arguments"),
        ("--mine", spec == "ps", "ps: %gpu ps --mine"),
        ("--yes", spec.startswith("shutdown "), "shutdown: %gpu shutdown NAME --yes"),
        ("--every", spec == "watch", "watch: %gpu watch --every 5"),
        ("--for", spec == "watch", "watch: %gpu watch --for 60"),
        ("--threads", is_choice, _example(a_choice, "--threads 4")),
        ("--no-claim", is_choice, _example(a_choice, "--no-claim")),
        ("--soft", is_choice, _example(a_choice, "--soft")),
        ("--restart", lasting, _example(a_choice, "--restart")),
        ("--save", lasting, _example(a_choice, "--save")),
        ("--keep", restart, _example("--restart", "--restart --keep model")),
        ("--blocking", restart, "--restart; for example: %gpu reset --restart --blocking"),
        ("--force", restart, _example("--restart", "--restart --force")),
        *(
            (name, is_auto(spec), f"auto; for example: %gpu auto {name} …")
            for name in ("--min-free", "--max-util", "--idle", "--wait")
        ),
    )


def _example(partner: str, options: str) -> str:
    return f"{partner}; for example: %gpu off {options}"


def is_auto(spec: str) -> bool:
    return spec.split(" ")[0].lower() == "auto"
