"""The options of ``%gpu`` for clusters: ``cluster``, ``pin``, ``dist`` and ``--cluster``."""

from __future__ import annotations

import argparse
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from gpumagic.cluster.timeouts import TIMEOUT
from gpumagic.errors import SpecError
from gpumagic.magics.argument_types import count, duration
from gpumagic.magics.parsing import Parser
from gpumagic.magics.shared_options import add_targets

#: The verbs of ``%gpu`` for clusters.
VERBS = ("cluster", "pin", "dist")


def add_options(options: Parser) -> None:
    """Add the options of ``%gpu`` for clusters."""
    group = options.add_argument_group("cluster (needs ipyparallel)")
    add_targets(group)
    group.add_argument(
        "--per-engine",
        type=count(most=10**9 - 1, of="GPUs"),
        metavar="K",
        default=1,
        help="pin: K GPUs each (default: 1)",
    )
    group.add_argument(
        "--share", action="store_true", help="pin: engines of a host may have the same GPU"
    )
    group.add_argument(
        "--backend",
        metavar="NAME",
        default="auto",
        help="dist init: nccl, gloo, … or auto: nccl if every engine has a GPU of its own, else "
        "gloo. Between hosts the network must be trusted: torch has no password",
    )
    group.add_argument(
        "--timeout",
        type=duration,
        metavar="TIME",
        help=f"how long engines may take to answer (default: {TIMEOUT:g} s for the table)",
    )


#: The options that are only for this kernel, or only for one verb.
_ONLY_HERE = (
    *("--keep", "--blocking", "--soft", "--save", "--threads", "--wait", "--every", "--for"),
    *("--arguments", "--mine", "--yes"),
)
_VERBS_HERE = {"watch": "%gpu cluster", "ps": "%gpu cluster -p", "doctor": "%gpu cluster"}
ONLY_AUTO = ("--min-free", "--max-util", "--idle")
_ONLY_FOR = {
    "--per-engine": "pin",
    "--share": "pin",
    "--backend": "dist",
    "-p": "cluster",
}


def check(verb: str, options: argparse.Namespace, given: Mapping[str, Any]) -> None:
    """Raise an error for an option that would be ignored.

    Raises:
        SpecError: an option does not go with the verb.
    """
    if verb in _VERBS_HERE:
        raise SpecError(f"%gpu {verb} is for this kernel; for the engines: {_VERBS_HERE[verb]}")
    for name in given:
        problem = _problem(name, verb, options.spec[1:])
        if problem is not None:
            raise SpecError(problem)


def _problem(name: str, verb: str, words: Sequence[str]) -> str | None:
    """Return why an option does not go with a verb and its arguments; None if it does."""
    if name in _ONLY_HERE:
        return f"{name} is for this kernel: it does not go with a cluster"
    if name in ONLY_AUTO and verb != "auto":
        return f"{name} goes with auto; for example: %gpu auto 2 --cluster"
    if _ONLY_FOR.get(name, verb) != verb:
        return f"{name} goes with %gpu {_ONLY_FOR[name]}"
    if name == "--backend" and words[:1] != ["init"]:
        return "--backend goes with %gpu dist init"
    if verb in ("cluster", "dist") and name in ("--restart", "--force"):
        return f"%gpu {verb} restarts nothing; for example: %gpu pin --restart"
    if verb in ("cluster", "dist") and name == "--no-claim":
        return "--no-claim goes with a choice of GPUs; for example: %gpu pin --no-claim"
    return None


def without_effect(verb: str, words: Sequence[str]) -> set[str]:
    """Return the options, by name, that do not go with a verb on a cluster."""
    names = (*_ONLY_HERE, *ONLY_AUTO, *_ONLY_FOR, "--restart", "--force", "--no-claim")
    return {name for name in names if _problem(name, verb, words) is not None}


#: The options that are only for a cluster.
ONLY_THERE = ("-t", "--per-engine", "--share", "--backend", "--timeout")


def check_unused(given: Collection[str]) -> None:
    """Raise an error for an option for clusters without ``--cluster``.

    Raises:
        SpecError: there is one.
    """
    for name in ONLY_THERE:
        if name in given:
            raise SpecError(f"{name} goes with a cluster; for example: %gpu off --cluster -t 0:4")
