"""What torch.compile compiles while code is timed: compiling is no time of the code."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from gpumagic.wording import plural

_WHY = "TORCH_LOGS=recompiles,graph_breaks, set before Python starts, says why"


def compiled_functions() -> int:
    """Return how many functions torch.compile has compiled in this process."""
    # Private counters of torch's compiler, which is not imported here.
    counters: Any = getattr(sys.modules.get("torch._dynamo.utils"), "counters", None)
    return 0 if counters is None else int(counters["frames"]["total"])


def counted(functions: int, *, repeats: int = 1) -> tuple[str, ...]:
    """Return a note on the functions that were compiled in what is timed, if there are any."""
    if not functions:
        return ()
    where = "in this run" if repeats == 1 else "during the repeats; their times include compiling"
    return (f"torch.compile compiled {plural(functions, 'function')} {where}; {_WHY}",)


def not_counted(runs: Sequence[float]) -> tuple[str, ...]:
    """Return a note on the runs, by their wall seconds, that are left out as compilations."""
    if not runs:
        return ()
    which = "the first run" if len(runs) == 1 else f"{len(runs)} runs"
    times = ", ".join(f"{seconds:.3g} s" for seconds in runs)
    return (f"torch.compile compiled in {which}, not counted: {times}; {_WHY}",)
