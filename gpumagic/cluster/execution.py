"""Time a cell, or measure its GPU memory, on every engine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from gpumagic.cluster import cell_run
from gpumagic.cluster.cell_plan import CellPlan
from gpumagic.cluster.cell_run import Outcome, Progress
from gpumagic.cluster.connection import Cluster
from gpumagic.errors import SpecError
from gpumagic.render.units import spans
from gpumagic.results import ClusterMemory, ClusterTiming, EngineMemory, EngineTiming
from gpumagic.system.text import noun


def _no_progress(done: int, of: int, seconds: float) -> None:
    """Show nothing."""


def cudatime(
    cluster: Cluster,
    code: str,
    engines: Sequence[int] | None = None,
    *,
    n: int | None = None,
    r: int | None = None,
    w: int | None = None,
    setup: str = "",
    precision: float | None = None,
    max_time: float | None = None,
    queued: bool = False,
    cold: bool = False,
    kernels: bool = False,
    progress: Progress = _no_progress,
) -> ClusterTiming:
    """Time ``code`` on the engines, by ``%%cudatime`` on each; its output is shown here.

    The options are those of `gpumagic.cudatime`, and ``kernels`` is ``--kernels``. An engine on
    which the code raises, or that dies, has its reason in the result's ``failed``.

    Raises:
        SpecError: the options do not fit; the engines are the ranks of a process group and would
            run the code a different number of times.
        DeviceError: no engine can run it, or the controller is gone.
    """
    values = {
        **{"-n": n, "-r": r, "-w": w, "-s": setup or None},
        **{"--precision": precision, "--max-time": max_time},
        **{"--queued": queued, "--cold": cold, "--kernels": kernels},
    }
    # Not `in (None, False)`: the 0 of -w 0 is equal to False.
    options = {name: v for name, v in values.items() if v is not None and v is not False}
    result, exception = timed(cluster, CellPlan("cudatime", code, options), engines, progress)
    if isinstance(exception, KeyboardInterrupt):
        raise exception
    return result


def gpumem(
    cluster: Cluster,
    code: str,
    engines: Sequence[int] | None = None,
    *,
    progress: Progress = _no_progress,
) -> ClusterMemory:
    """Measure what ``code`` does to GPU memory on the engines; see `cudatime` for the rest."""
    result, exception = measured(cluster, CellPlan("gpumem", code), engines, progress)
    if isinstance(exception, KeyboardInterrupt):
        raise exception
    return result


def timed(
    cluster: Cluster, plan: CellPlan, engines: Sequence[int] | None, progress: Progress
) -> tuple[ClusterTiming, BaseException | None]:
    """Return what `cudatime` does, and the exception to raise when the result has been shown."""
    engines = cluster.ids if engines is None else engines
    outcome = cell_run.run(cluster, engines, plan, _for_group, progress)
    rows = tuple(
        EngineTiming(**fields, timing=outcome.results.get(fields["engine"]))
        for fields in outcome.engine_fields()
    )
    result = ClusterTiming(rows, outcome.elapsed, outcome.is_one_group)
    if "--kernels" in plan.options:
        result = replace(result, notes=tuple(_without_kernels(result)))
    return result, outcome.exception


def _for_group(plan: CellPlan, outcome: Outcome) -> CellPlan:
    """Return the plan for the engines: the ranks of a process group start behind a barrier.

    Raises:
        SpecError: they are no such ranks, and ``--barrier`` is given; or they would wait for each
            other for ever.
    """
    if not outcome.is_one_group:
        if "--barrier" in plan.options:
            raise SpecError(
                "--barrier: these engines are not all the ranks of one process group; %gpu dist "
                "init makes one of them"
            )
        return plan
    if not plan.runs_equally_often:
        raise SpecError(
            "the ranks of a process group must run the code equally often, or they wait for each "
            "other for ever: give -n, -r and -w, without --precision, --max-time, --queued and "
            "--kernels; or no repeats"
        )
    return replace(plan, options={**plan.options, "--barrier": True})


def _without_kernels(result: ClusterTiming) -> Iterator[str]:
    """Yield why engines that have a timing have no kernels."""
    reasons: dict[str, list[int]] = {}
    for engine, timing in result.per_engine.items():
        if timing.kernels is None and engine not in result.failed:
            reason = timing.notes[-1] if timing.notes else "no profile"
            reasons.setdefault(reason, []).append(engine)
    for reason, engines in reasons.items():
        yield f"{noun(len(engines), 'engine')} {spans(engines)}: {reason}"


def measured(
    cluster: Cluster, plan: CellPlan, engines: Sequence[int] | None, progress: Progress
) -> tuple[ClusterMemory, BaseException | None]:
    """Return what `gpumem` does, and the exception to raise when the result has been shown."""
    engines = cluster.ids if engines is None else engines
    outcome = cell_run.run(cluster, engines, plan, lambda plan, _: plan, progress)
    rows = tuple(
        EngineMemory(**fields, delta=outcome.results.get(fields["engine"]))
        for fields in outcome.engine_fields()
    )
    return ClusterMemory(rows, outcome.elapsed), outcome.exception
