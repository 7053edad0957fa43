"""``%gpu cluster``, ``%gpu pin``, ``%gpu SPEC --cluster``: the GPUs of ipyparallel's engines."""

from __future__ import annotations

from typing import Any

from gpumagic.cluster import connection, selection
from gpumagic.cluster.results import engine_ids
from gpumagic.errors import DeviceError
from gpumagic.magics.cluster import current
from gpumagic.magics.delivery import hand_over, warn
from gpumagic.magics.gpu.choosing import wants
from gpumagic.magics.gpu.gpu_options import ChoiceOptions, EnginesOptions, PinOptions
from gpumagic.magics.magic_state import MagicState
from gpumagic.system.text import harmless


def run(magics: MagicState, options: EnginesOptions | PinOptions | ChoiceOptions) -> Any:
    """Run ``%gpu cluster``, ``%gpu pin``, or a choice with ``--cluster``.

    Raises:
        SpecError: the choice does not fit.
        DependencyError: ipyparallel is not installed.
        DeviceError: there is no cluster, or it cannot do what was asked.
    """
    cluster = current(magics, options.profile if isinstance(options, EnginesOptions) else None)
    engines = connection.targets(options.targets, cluster.ids)
    if isinstance(options, EnginesOptions):
        return hand_over(magics.shell, selection.devices(cluster, engines), options)
    claim = magics.claim and not options.no_claim
    try:
        if isinstance(options, PinOptions):
            chosen = selection.pin(cluster, engines, claim=claim)
        else:
            text = " ".join(options.spec)
            asked = wants(magics, options)
            chosen = selection.choose(
                cluster, text, engines, min_free=asked.min_free, idle=asked.idle, claim=claim
            )
    except KeyboardInterrupt:
        raise DeviceError(
            "interrupted: some engines may have chosen already; see %gpu cluster"
        ) from None
    returned = hand_over(magics.shell, chosen, options)
    if not chosen.per_engine:
        engine, reason = next(iter(chosen.failed.items()))
        raise DeviceError(f"no engine was changed; engine {engine}: {reason}")
    if chosen.too_late:
        first = chosen.per_engine[chosen.too_late[0]]
        where = f" ({first.where})" if first.where is not None else ""
        problem = harmless(f"{engine_ids(chosen.too_late)}: {first.problem}{where}")
        warn(
            f"{problem}. Restart them with Cluster.restart_engines() of ipyparallel, and choose "
            "again: their variables are lost"
        )
    return returned
