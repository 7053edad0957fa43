"""Work for the GPU, and its time by events written by hand."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any


def spin(torch: Any, ordinal: int = 0, seconds: float = 0.05) -> None:
    """Keep a GPU at work: one that was idle takes a while to reach its clock."""
    x = torch.ones(2048, 2048, device=f"cuda:{ordinal}")
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        x @ x
        torch.cuda.synchronize(ordinal)


def by_events(torch: Any, code: Callable[[], Any]) -> float:
    """Seconds between two events around ``code``, on the current stream."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    start.record()
    code()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) / 1e3
