"""``%gpu cluster``, ``pin``, ``dist`` and ``--cluster``: the GPUs of ipyparallel's engines."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

from gpumagic.cluster import connection, process_group, selection
from gpumagic.cluster.connection import Cluster
from gpumagic.errors import DeviceError
from gpumagic.magics.output import hand_over, warn
from gpumagic.render.units import spans
from gpumagic.results import ClusterSelection, ProcessGroup
from gpumagic.selection.auto import Wants
from gpumagic.system.text import harmless, noun


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
    verb: str,
    options: argparse.Namespace,
    given: Mapping[str, Any],
    wants: Wants,
    *,
    silent: bool,
) -> Any:
    """Run a verb, or a selection with ``--cluster``; ``given`` are the options by name.

    Raises:
        SpecError: the choice does not fit.
        DependencyError: ipyparallel is not installed.
        DeviceError: there is no cluster, or it cannot do what was asked.
    """
    cluster = current(magics, options.profile)
    engines = cluster.targets(options.targets)
    limit = {} if options.timeout is None else {"timeout": options.timeout}
    again = {
        "claim": magics.claim and not options.no_claim,
        **limit,
    }
    result: Any
    if verb == "cluster":
        result = selection.devices(cluster, engines, processes=options.processes, **limit)
    elif verb == "dist":
        result = _dist(cluster, engines, options, **limit)
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
        _warn(result)
    return returned


def _warn(result: ClusterSelection) -> None:
    """Warn of engines where the choice is too late."""
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
        f"Too late on {which}: {reason}. To change that: restart the engines (ipyparallel's "
        "Cluster.restart_engines), and choose first"
    )


def _dist(
    cluster: Cluster, engines: Sequence[int], options: argparse.Namespace, **limit: float
) -> ProcessGroup:
    if options.state is None:
        return process_group.group(cluster, engines, **limit)
    if options.state == "init":
        return process_group.init_group(cluster, engines, backend=options.backend, **limit)
    return process_group.end_group(cluster, engines, **limit)
