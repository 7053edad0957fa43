"""The options of ``%gpu``, and which go together: an option without effect is an error."""

from __future__ import annotations

import argparse
from collections.abc import Collection, Mapping
from typing import Any

from gpumagic.errors import SpecError
from gpumagic.magics.argument_types import count, duration_or_zero, percentage, size
from gpumagic.magics.parsing import Parser
from gpumagic.selection.spec import Wants


def add_options(parser: Parser) -> None:
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


def without_effect(
    given: Collection[str], spec: str, *, is_choice: bool, one_cell: bool
) -> set[str]:
    """Return the options, by name, that `check` would refuse beside those that are given.

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
            (name, _is_auto(spec), f"auto; for example: %gpu auto {name} …")
            for name in ("--min-free", "--max-util", "--idle", "--wait")
        ),
    )


def _example(partner: str, options: str) -> str:
    return f"{partner}; for example: %gpu off {options}"


def _is_auto(spec: str) -> bool:
    return spec.split(" ")[0].lower() == "auto"


def wants(options: argparse.Namespace, magics: Any, spec: str) -> Wants:
    """Return what ``auto`` requires of a device, by the options or by the configuration.

    Raises:
        SpecError: a configured value is not valid.
    """
    if not _is_auto(spec):
        return Wants()
    try:
        min_free, max_util = options.min_free, options.max_util
        if min_free is None and magics.min_free:
            min_free = size(magics.min_free)
        if max_util is None and magics.max_util:
            max_util = percentage(magics.max_util)
    except argparse.ArgumentTypeError as error:
        raise SpecError(f"%config GpuMagic: {error}") from None
    return Wants(min_free=min_free, max_util=max_util, idle=options.idle)
