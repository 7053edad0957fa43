"""What limits code, the GPU or the host that launches its work: the verdict and its evidence."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from gpumagic.results import Bound
from gpumagic.timing.launch_overhead import QueuedSampling

#: GPU time after the host has finished, as a part of all GPU time: from here on it is surely the
#: larger part.
CLEARLY_LATER = 0.5
#: The GPU time with launch overhead hidden, as a part of that as run: host-bound below the first,
#: GPU-bound from the second on, and neither clearly in between.
_HOST_BOUND, _GPU_BOUND = 0.8, 0.9
#: A run in which the GPU took so much less than it needs was not measured right.
_IMPOSSIBLE = 1.1
#: Host-bound up to this, where the queued time is only an upper bound.
_SURELY_HOST_BOUND = 0.5
#: Where streams that are not torch's were not delayed.
_UNSEEN = "; work on streams that are not torch's is not seen"

#: What limits the code, and how that is known; None where it is not.
Verdict = tuple[Bound | None, str | None]


def gpu_outlasts_host(gpu: Sequence[float], host: Sequence[float]) -> bool:
    """Return whether in most runs over half of the GPU time came after the host had finished."""
    later = sum(g - h >= CLEARLY_LATER * g for g, h in zip(gpu, host, strict=True))
    return 2 * later > len(gpu)


def judge(
    gpu: Sequence[float],
    host: Sequence[float],
    loops: int = 1,
    sampling: QueuedSampling | None = None,
) -> Verdict:
    """Return what limits the code.

    From the runs' GPU and host seconds, of ``loops`` loops each, and the queued samples.
    """
    if not gpu:
        return None, None
    # The fastest run: what a busy machine adds to the others is no time of the code.
    as_run = min(gpu) / loops
    if gpu_outlasts_host(gpu, host):
        alone = statistics.median((g - h) / g for g, h in zip(gpu, host, strict=True))
        return "gpu", f"the GPU worked on for {alone * 100:.0f} % of its time after the host"
    if sampling is None:
        return None, None
    if sampling.samples:
        if sampling.no_gpu_work:
            return None, None
        queued, which = statistics.median(sampling.samples), "best"
        share = queued / as_run
        if share > _IMPOSSIBLE:
            share, which = queued * loops / statistics.median(gpu), "median"
        part = _percent(share)
        evidence = f"with launch cost hidden, the GPU takes {part} of its {which} time as run"
        evidence += _UNSEEN * (not sampling.holds_all)
        if share < _HOST_BOUND:
            return "host", evidence
        return "gpu" if share >= _GPU_BOUND else None, evidence
    if sampling.upper_bounds:
        share = min(sampling.upper_bounds) / as_run
        if share <= _SURELY_HOST_BOUND:
            evidence = f"the GPU needs {_percent(share)} of its best time as run, or less"
            return "host", evidence + _UNSEEN * (not sampling.holds_all)
    return None, None


def _percent(share: float) -> str:
    """Return a share that is not 0 as a percentage: what is rounded to 0 is ``< 1 %``."""
    return f"{share * 100:.0f} %" if share >= 0.005 else "< 1 %"
