"""The progress of the repeats: shown only after a second, and removed at the end."""

from __future__ import annotations

import sys
from collections.abc import Callable
from time import perf_counter
from typing import Any

from gpumagic.magics.output import LiveDisplay
from gpumagic.render import text
from gpumagic.render.blocks import Block, Cell, Column, Grid
from gpumagic.render.units import seconds, share

#: Seconds before anything is shown, and between two updates.
DELAY, PERIOD = 1.0, 0.2


class Progress:
    """The share done, the time elapsed and the current median, in one place.

    An output of its own in a notebook, and in a terminal a line on standard error, apart from the
    output of the timed code. No thread is started.
    """

    def __init__(self, shell: Any, *, enabled: bool = True, what: str = "%cudatime") -> None:
        self._in_kernel = getattr(shell, "kernel", None) is not None
        self._enabled = enabled and (self._in_kernel or sys.stderr.isatty())
        self._started = perf_counter()
        self._next = self._started + DELAY
        self._live = LiveDisplay(shell)
        self._what = what
        self._drawn = 0

    def update(self, done: float, median: Callable[[], float | None] = lambda: None) -> None:
        """Show that the share ``done``, 0 to 1, is done; ``median`` is asked if it is shown."""
        now = perf_counter()
        if not self._enabled or now < self._next:
            return
        self._next = now + PERIOD
        blocks = _blocks(self._what, done, now - self._started, median())
        if self._in_kernel:
            self._live.blocks(blocks)
            return
        line = text.encodable(text.render(blocks), sys.stderr.encoding)
        sys.stderr.write(f"\r{line:<{self._drawn}}")
        sys.stderr.flush()
        self._drawn = len(line)

    def close(self) -> None:
        """Remove what is shown."""
        self._live.close()
        if self._drawn:
            sys.stderr.write("\r" + " " * self._drawn + "\r")
            sys.stderr.flush()
            self._drawn = 0


def _blocks(what: str, done: float, elapsed: float, median: float | None) -> list[Block]:
    parts = [share(min(done, 1.0)), seconds(elapsed)]
    if median is not None:
        parts.append(f"median {seconds(median)}")
    columns = (Column("Magic"), Column("Done"))
    return [Grid(columns, [(Cell(what), Cell(" · ".join(parts), bar=done))], header=False)]
