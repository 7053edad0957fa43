"""One result of several runs: the times and their bounds, what limits the code, what is said of it.

Also whether torch.compile has compiled in a run: that is no time of the code.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from gpumagic.cuda import no_gpu
from gpumagic.cuda.pytorch import conditions, torch_cuda
from gpumagic.render.units import share
from gpumagic.results.timing.cuda_timing import CudaTiming, Limit, Sample, is_bound
from gpumagic.timing.queued_runs import Queued
from gpumagic.timing.run_times import Times, sure_part
from gpumagic.wording import plural

WAITED = "the GPU may have waited for Python"
#: Where waiting for the device took long.
_ANOTHER = "another library may have used the GPU; --kernels tells more"
LOADED = (
    "the first timed run since CUDA started: GPU kernels may have been loaded in it; run it again"
)
STOPPED_EARLY = "stopped early: the code has not run to its end"
_WHY = "TORCH_LOGS=recompiles,graph_breaks, set before Python starts, says why"

#: Host-bound: queued, the work takes the GPU less than this part of the time as run.
_HOST_BOUND = 0.9


def summarize(
    runs: Sequence[Times],
    *,
    loops: int = 1,
    own: Queued | None = None,
    **others: Any,
) -> CudaTiming:
    """Aggregate runs, of ``loops`` loops each; ``others`` are further fields.

    ``own`` is the GPU's own time, where queued runs show it.
    """

    def per_loop(values: Sequence[float]) -> Sample:
        return Sample(tuple(value / loops for value in values))

    seen = sorted({ordinal for run in runs for ordinal in run.signs})
    fields: dict[str, Any] = {"gpu": None, "gpu_note": _why_none(runs)}
    if own is not None:
        gpu, seen = own.sample, [own.device]
        fields = {"gpu": gpu, "gpu_at_least": own.at_least, "per_device": {own.device: gpu}}
    elif fields["gpu_note"] is None:
        in_use = sorted({ordinal for run in runs for ordinal in run.readings})
        # Without a sign, the time may be any device's.
        named = seen or (in_use if len(in_use) == 1 else [])
        least = per_loop([run.lower for run in runs])
        fields = {
            "gpu": per_loop([run.upper for run in runs]),
            "gpu_at_most": is_bound(1.0, sure_part(runs)),
            "gpu_at_least": least if least.median else None,
            "per_device": {i: per_loop([run.upper_of(i) for run in runs]) for i in named},
        }
        if fields["gpu_at_most"]:
            maybe = any(reading.maybe for run in runs for reading in run.readings.values())
            waited = WAITED if seen else _ANOTHER if maybe else None
            fields["gpu_note"] = _first_use(runs) or waited
            if len(runs) == loops == 1 and any(runs[0].readings[i].first for i in seen):
                others["notes"] = (*others.get("notes", ()), LOADED)
    limited_by, evidence = what_limits(runs, loops, own)
    return CudaTiming(
        **fields,
        gpu_seen=bool(seen),
        wall=per_loop([run.wall for run in runs]),
        wall_at_most=2 * sum(run.wall_at_most for run in runs) >= len(runs),
        cpu=per_loop([run.cpu for run in runs]),
        host=per_loop([run.host for run in runs]),
        loops=loops,
        repeat=len(runs),
        limited_by=limited_by,
        limit_evidence=evidence,
        conditions=conditions.of(fields.get("per_device", ())),
        **others,
    )


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


# --- torch.compile, which is not imported here ---------------------------------------------------


def compiled_frames() -> int:
    """Return how many frames torch.compile has compiled in this process."""
    # The counters are private; they are there once torch's compiler is imported.
    counters: Any = getattr(sys.modules.get("torch._dynamo.utils"), "counters", None)
    return 0 if counters is None else int(counters["frames"]["total"])


def counted(frames: int, *, repeats: int = 1) -> tuple[str, ...]:
    """Return a note on what was compiled in what is timed, if anything was."""
    if not frames:
        return ()
    where = "in this run" if repeats == 1 else "during the repeats; their times include compiling"
    return (f"torch.compile compiled {plural(frames, 'function')} {where}; {_WHY}",)


def not_counted(runs: Sequence[float]) -> tuple[str, ...]:
    """Return a note on the runs, by their wall seconds, that are left out as compilations."""
    if not runs:
        return ()
    which = "the first run" if len(runs) == 1 else f"{len(runs)} runs"
    times = ", ".join(f"{seconds:.3g} s" for seconds in runs)
    return (f"torch.compile compiled in {which}, not counted: {times}; {_WHY}",)
