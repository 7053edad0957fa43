"""One result of several runs: the times, their bounds, what limits the code, what is said of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from gpumagic.cuda import no_gpu
from gpumagic.cuda.pytorch import measured_on, torch_cuda
from gpumagic.render.units import share
from gpumagic.results.timing.cuda_timing import CudaTiming, Limit
from gpumagic.results.timing.sample import Sample, is_bound
from gpumagic.timing.run_times import Queued, Times, sure_part

WAITED = "the GPU may have waited for Python"
#: Where waiting for the device took long.
_ANOTHER = "another library may have used the GPU; --kernels tells more"
LOADED = (
    "the first timed run since CUDA started: GPU kernels may have been loaded in it; run it again"
)
_STOPPED_EARLY = "stopped early: the code has not run to its end"

#: Host-bound: queued, the work takes the GPU less than this part of the time as run.
_HOST_BOUND = 0.9


def summarize(runs: Sequence[Times], *, loops: int = 1, own: Queued | None = None) -> CudaTiming:
    """Return the result of runs of ``loops`` loops each.

    ``own`` is the GPU's own time, where queued runs show it.
    """
    limited_by, evidence = what_limits(runs, loops, own)
    timing = CudaTiming(
        gpu=None,
        gpu_note=_why_none(runs),
        gpu_seen=own is not None or any(run.signs for run in runs),
        wall=_per_loop([run.wall for run in runs], loops),
        wall_at_most=2 * sum(run.wall_at_most for run in runs) >= len(runs),
        cpu=_per_loop([run.cpu for run in runs], loops),
        host=_per_loop([run.host for run in runs], loops),
        loops=loops,
        repeat=len(runs),
        limited_by=limited_by,
        limit_evidence=evidence,
    )
    if own is not None:
        per_device = {own.device: own.sample}
        timing = replace(timing, gpu=own.sample, gpu_at_least=own.at_least, per_device=per_device)
    elif timing.gpu_note is None:
        timing = _with_gpu(timing, runs)
    return replace(timing, conditions=measured_on.conditions(timing.per_device))


def _with_gpu(timing: CudaTiming, runs: Sequence[Times]) -> CudaTiming:
    """Return the result with the GPU times that the runs show."""
    loops, signs = timing.loops, sorted({ordinal for run in runs for ordinal in run.signs})
    in_use = sorted({ordinal for run in runs for ordinal in run.readings})
    # Without a sign, the time may be any device's.
    named = signs or (in_use if len(in_use) == 1 else [])
    least = _per_loop([run.lower for run in runs], loops)
    timing = replace(
        timing,
        gpu=_per_loop([run.upper for run in runs], loops),
        gpu_at_most=is_bound(1.0, sure_part(runs)),
        gpu_at_least=least if least.median else None,
        per_device={i: _per_loop([run.upper_of(i) for run in runs], loops) for i in named},
    )
    if not timing.gpu_at_most:
        return timing
    maybe = any(reading.maybe for run in runs for reading in run.readings.values())
    waited = WAITED if signs else _ANOTHER if maybe else None
    is_first = len(runs) == loops == 1 and any(runs[0].readings[i].first for i in signs)
    notes = (LOADED,) if is_first else ()
    return replace(timing, gpu_note=_first_use(runs) or waited, notes=notes)


def _per_loop(seconds: Sequence[float], loops: int) -> Sample:
    return Sample(tuple(each / loops for each in seconds))


def stopped_early(timing: CudaTiming) -> CudaTiming:
    """Return the times of a run that an exception has ended, marked so."""
    return replace(timing, partial=True, notes=(*timing.notes, _STOPPED_EARLY))


def what_limits(
    runs: Sequence[Times], loops: int, own: Queued | None
) -> tuple[Limit | None, str | None]:
    """Return what limits the code, and how that is known; None where it is not."""
    if not all(run.readings for run in runs):
        return None, None
    if not is_bound(1.0, part := sure_part(runs)):
        return "gpu", f"the GPU still worked for {share(part)} of its time after Python returned"
    if own is None:
        return None, None
    most = own.sample.median * loops / min(run.wall_least for run in runs)
    least = own.sample.median * loops / min(run.upper for run in runs)
    part = most if most < _HOST_BOUND else least
    if least < _HOST_BOUND <= most:
        return None, None
    percent = share(min(part, 1.0)) if part >= 0.005 else "< 1 %"
    evidence = f"queued beforehand, the same work takes the GPU {percent} of the best repeat"
    return ("host" if part < _HOST_BOUND else "gpu"), evidence


def _why_none(runs: Sequence[Times]) -> str | None:
    """Return why there is no GPU time."""
    notes = [run.note for run in runs if run.note is not None]
    if not notes and any(run.readings for run in runs):
        return None
    return notes[0] if notes else f"no GPU time: {no_gpu.reason()}{_not_waited_for()}"


def _first_use(runs: Sequence[Times]) -> str | None:
    """Return a note on the devices that were first used in a single run."""
    new = [i for i, reading in runs[0].readings.items() if reading.new]
    if len(runs) > 1 or not new:
        return None
    named = " and ".join(f"cuda:{i}" for i in new)
    return f"the time includes starting CUDA on {named}, first used in this cell; run it again"


def _not_waited_for() -> str:
    """Return a remark on an accelerator that is not CUDA's, as MPS or XPU; empty without one."""
    torch = None if torch_cuda.built_with_cuda() else torch_cuda.loaded()
    for kind in ("mps", "xpu"):
        backend: Any = getattr(torch, kind, None)
        if backend is not None and backend.is_available():
            return f"; the wall time does not wait for {kind}"
    return ""


def waited_for_a_processor(part: float | None) -> tuple[str, ...]:
    """Return a note on the part of the time for which Python waited, unless that is small."""
    if part is None or not is_bound(1.0, 1.0 - part):
        return ()
    waited = f"kept Python waiting for a CPU core for {share(part)} of the time"
    return (f"Other programs, threads or a CPU limit {waited}",)
