"""``%gpu cluster``, ``pin``, ``dist`` and ``--cluster``: the GPUs of ipyparallel's engines."""

from __future__ import annotations

import argparse
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from gpumagic.cluster import connection, process_group, rpc, selection
from gpumagic.cluster.connection import Cluster
from gpumagic.errors import DeviceError, SpecError
from gpumagic.magics.argument_types import count, duration
from gpumagic.magics.output import hand_over, warn
from gpumagic.magics.parsing import Parser
from gpumagic.render.units import spans
from gpumagic.results import ClusterSelection, ProcessGroup
from gpumagic.selection.spec import Wants
from gpumagic.system.text import harmless, noun

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
        help=f"how long engines may take to answer (default: {rpc.TIMEOUT:g} s for the table)",
    )


def add_targets(group: Any) -> None:
    """Add ``--cluster`` and ``-t``, which every magic has."""
    group.add_argument(
        "--cluster",
        action="store_true",
        help="on the engines of ipyparallel's cluster, not in this kernel",
    )
    group.add_argument(
        "-t",
        "--targets",
        metavar="ENGINES",
        help="only these engines: 2, 0,3, 0:4 (default: all of them)",
    )


#: The options that are only for this kernel, or only for one verb.
_ONLY_HERE = (
    *("--keep", "--blocking", "--soft", "--save", "--threads", "--wait", "--every", "--for"),
    *("--arguments", "--mine", "--yes"),
)
_VERBS_HERE = {"watch": "%gpu cluster", "ps": "%gpu cluster -p", "doctor": "%gpu cluster"}
_ONLY_AUTO = ("--min-free", "--max-util", "--idle")
_ONLY_FOR = {
    "--per-engine": "pin",
    "--share": "pin",
    "--backend": "dist",
    "-p": "cluster",
}


def _check(verb: str, options: argparse.Namespace, given: Mapping[str, Any]) -> None:
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
    if name in _ONLY_AUTO and verb != "auto":
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
    names = (*_ONLY_HERE, *_ONLY_AUTO, *_ONLY_FOR, "--restart", "--force", "--no-claim")
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


def current(magics: Any, where: str | None = None) -> Cluster:
    """Return the cluster ``where``, or the one that this shell used last, or that of ``%px``."""
    extension = magics.extension
    # The one that was named last stays in use, also when it has to be connected again.
    where = extension.cluster if where is None else where
    found = connection.connect(where, magics.shell)
    extension.cluster = where
    return found


def run(
    magics: Any,
    options: argparse.Namespace,
    given: Mapping[str, Any],
    wants: Wants,
    *,
    silent: bool,
) -> Any:
    """Run a verb, or a selection with ``--cluster``; ``given`` are the options by name.

    Raises:
        SpecError: the options do not fit.
        DependencyError: ipyparallel is not installed.
        DeviceError: there is no cluster, or it cannot do what was asked.
    """
    verb, *words = options.spec or ["cluster"]
    if verb == "cluster" and len(words) > 1:
        raise SpecError(f"%gpu cluster: one profile or connection file, not {len(words)}")
    if verb == "pin" and words:
        raise SpecError(f"%gpu pin gives each engine GPUs by its rank; it takes no {words[0]!r}")
    _check(verb.lower(), options, given)
    cluster = current(magics, words[0] if verb == "cluster" and words else None)
    engines = cluster.targets(options.targets)
    limit = {} if options.timeout is None else {"timeout": options.timeout}
    again = {
        "restart": options.restart,
        "force": options.force,
        "claim": magics.claim and not options.no_claim,
        **limit,
    }
    result: Any
    if verb == "cluster":
        result = selection.devices(cluster, engines, processes=options.processes, **limit)
    elif verb == "dist":
        result = _dist(cluster, engines, words, options.backend, **limit)
    else:
        spec = " ".join(options.spec)
        try:
            if verb == "pin":
                result = selection.pin(
                    cluster, engines, per_engine=options.per_engine, share=options.share, **again
                )
            else:
                result = selection.choose(cluster, spec, engines, wants=wants, **again)
        except KeyboardInterrupt:
            raise DeviceError(
                "interrupted: engines that had not begun are unchanged; see %gpu cluster"
            ) from None
    returned = hand_over(magics.shell, result, options, silent=silent)
    if isinstance(result, ClusterSelection):
        if result and all(each.error is not None for each in result):
            raise DeviceError(
                f"no engine was changed; engine {result[0].engine}: {result[0].error}"
            )
        _warn(result, [*options.spec, *_repeated(given)])
    return returned


def _warn(result: ClusterSelection, again: Sequence[str]) -> None:
    """Warn of engines where the choice is too late; ``again`` are the words to type it again."""
    late = result.too_late
    if not late:
        return
    first = next(each.selection for each in result if each.engine == late[0])
    reason = str(first.problem if first else "").partition(": ")[2]
    if first is not None and first.where is not None:
        reason += f" ({first.where})"
    reason = harmless(reason)
    which = f"{noun(len(late), 'engine')} {spans(late)}"
    warn(
        f"Too late on {which}: {reason}. To change that: %gpu {' '.join(again)} --restart (those "
        "engines restart in place, and lose their variables)"
    )


def _repeated(given: Mapping[str, Any]) -> Iterator[str]:
    """Yield the options that select engines and devices, to type them again."""
    for name in ("--cluster", "-t", "--per-engine", "--share", "--no-claim", *_ONLY_AUTO):
        if name in given:
            yield name
            if given[name] is not True:
                yield f"{given[name]:g}" if isinstance(given[name], float) else str(given[name])


def _dist(
    cluster: Cluster, engines: Sequence[int], words: Sequence[str], backend: str, **limit: float
) -> ProcessGroup:
    if len(words) > 1 or (words and words[0] not in ("init", "down")):
        raise SpecError(f"%gpu dist {' '.join(words)}: write %gpu dist init, or %gpu dist down")
    if not words:
        return process_group.group(cluster, engines, **limit)
    if words[0] == "init":
        return process_group.init_group(cluster, engines, backend=backend, **limit)
    return process_group.end_group(cluster, engines, **limit)
