"""Run the benchmarks one after the other, also after one has failed."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType

from tests.benchmarks.row import Row

#: Seconds that one benchmark may take: the longest takes two minutes on two cores.
PATIENCE = 900.0


def run(
    benchmarks: Mapping[str, Callable[[], Iterable[Row]]], patience: float = PATIENCE
) -> Iterator[Row]:
    """Measure each, and yield its rows as they come.

    One that fails, or that takes more than ``patience`` seconds, ends with a row that says so, and
    the others go on.
    """
    for name, rows in benchmarks.items():
        deadline = time.monotonic() + patience
        found: Iterator[Row] | None = None
        while True:
            try:
                # Only while the benchmark itself runs: the signal's exception is for it.
                with _ends_in(deadline - time.monotonic()):
                    found = iter(rows()) if found is None else found
                    row = next(found)
            except StopIteration:
                break
            except Exception as error:
                yield Row.failed(name, _reason(error))
                break
            yield row


class TooLongError(Exception):
    """A benchmark has used up its time."""


@contextmanager
def _ends_in(seconds: float) -> Iterator[None]:
    """Raise in the block when the time is over, also where it waits in a system call."""

    def over(number: int, frame: FrameType | None) -> None:
        raise TooLongError("it took too long and was given up")

    before = signal.signal(signal.SIGALRM, over)
    timer = signal.setitimer(signal.ITIMER_REAL, max(seconds, 1e-3))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        signal.setitimer(signal.ITIMER_REAL, *timer)  # of pytest, where it runs this


def _reason(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[-1]}" if lines else type(error).__name__
