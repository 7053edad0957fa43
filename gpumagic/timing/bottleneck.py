"""What limits code, the GPU or the host that launches its work: the verdict, and its evidence."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from gpumagic.results import Bound
from gpumagic.timing.launch_overhead import Probe

#: Work that was still to be done when the host had finished, as a part of the GPU time: from here
#: on it is surely the larger part.
CLEARLY_LATER = 0.5
#: The GPU's own part of its time, with launch cost hidden against as run: host-bound below the
#: first, GPU-bound from the second, and neither clearly in between.
_MOSTLY_WAITING, _MOSTLY_WORKING = 0.8, 0.9
#: The same where the queued time is an upper bound of the GPU's part.
_SURELY_WAITING = 0.5

#: What limits the code, and how that is known; None where it is not.
Verdict = tuple[Bound | None, str | None]


def outlives(gpu: Sequence[float], host: Sequence[float]) -> bool:
    """Whether in most runs the GPU worked on for more than half of its time without the host."""
    later = sum(g - h >= CLEARLY_LATER * g for g, h in zip(gpu, host, strict=True))
    return 2 * later > len(gpu)


def judge(
    gpu: Sequence[float], host: Sequence[float], loops: int = 1, probe: Probe | None = None
) -> Verdict:
    """From the runs' GPU and host seconds, of ``loops`` loops each, and the queued samples."""
    if not gpu:
        return None, None
    # The quickest run: what a busy machine adds to the others is not the code's.
    as_run = min(gpu) / loops
    if outlives(gpu, host):
        alone = statistics.median((g - h) / g for g, h in zip(gpu, host, strict=True))
        return "gpu", f"the GPU worked on for {alone:.0%} of its time after the host"
    if probe is None:
        return None, None
    if probe.samples:
        if probe.shows_nothing:
            return None, None
        share = statistics.median(probe.samples) / as_run
        evidence = f"with launch cost hidden, the GPU takes {share:.0%} of its best time as run"
        if share < _MOSTLY_WAITING:
            return "host", evidence
        return "gpu" if share >= _MOSTLY_WORKING else None, evidence
    if probe.bounds:
        share = min(probe.bounds) / as_run
        if share <= _SURELY_WAITING:
            evidence = f"the GPU needs {share:.0%} of its best time as run, or less"
            return "host", evidence
    return None, None
