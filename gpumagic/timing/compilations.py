"""Whether torch.compile compiles meanwhile. Imports nothing, changes nothing there."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import CodeType
from typing import Any

from gpumagic.system.text import plural

_WHY = "TORCH_LOGS=recompiles,graph_breaks, set before Python starts, says why"


def compiled_frames() -> int:
    """Return how many frames torch.compile has compiled in this process."""
    # The counters are private; they are there once torch's compiler is imported.
    counters: Any = getattr(sys.modules.get("torch._dynamo.utils"), "counters", None)
    return 0 if counters is None else int(counters["frames"]["total"])


def has_compiled(code: CodeType) -> bool:
    """Return whether torch.compile keeps compiled code for a function's code."""
    module = sys.modules.get("torch._C._dynamo.eval_frame")
    entries = getattr(module, "_debug_get_cache_entry_list", None)
    return callable(entries) and bool(entries(code))


def counted(frames: int) -> tuple[str, ...]:
    """Return a note on what was compiled in a run that is timed, if anything was."""
    if not frames:
        return ()
    return (f"torch.compile compiled {plural(frames, 'function')} in this run; {_WHY}",)


def not_counted(runs: Sequence[float]) -> tuple[str, ...]:
    """Return a note on the runs, by their wall seconds, that are left out as compilations."""
    if not runs:
        return ()
    which = "the first run" if len(runs) == 1 else f"{len(runs)} runs"
    times = ", ".join(f"{seconds:.3g} s" for seconds in runs)
    return (f"torch.compile compiled in {which}, not counted: {times}; {_WHY}",)
