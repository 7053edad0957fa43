"""A progress bar between repeats: shown only after a second, and removed at the end."""

from __future__ import annotations

import sys
import warnings
from time import perf_counter
from typing import Any

#: Seconds before the bar is shown.
DELAY = 1.0
_WIDTH = 24


class Progress:
    """A bar on standard error: tqdm's where it is installed, else a line that is redrawn.

    No thread is started. Nothing is shown unless standard error is a kernel's or a terminal.
    """

    def __init__(self, shell: Any, *, enabled: bool = True, what: str = "%cudatime") -> None:
        in_kernel = getattr(shell, "kernel", None) is not None
        self._enabled = enabled and (in_kernel or sys.stderr.isatty())
        self._started = perf_counter()
        self._bar: Any = None
        self._what = what

    def update(self, done: float) -> None:
        """Show that the fraction ``done``, 0 to 1, is done."""
        if not self._enabled or perf_counter() - self._started < DELAY:
            return
        if self._bar is None:
            self._bar = _tqdm(self._what) or _Line(self._what)
        self._bar.n = round(done * 100)
        self._bar.refresh()

    def close(self) -> None:
        """Remove the bar."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None


def _tqdm(what: str) -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # tqdm warns if ipywidgets is missing
            from tqdm.auto import tqdm
    except ImportError:
        return None

    class Bar(tqdm):  # type: ignore[misc]
        monitor_interval = 0  # no thread

    return Bar(total=100, desc=what, leave=False, bar_format="{desc} {bar} {n} %")


class _Line:
    """A line that is redrawn from its beginning."""

    n = 0

    def __init__(self, what: str) -> None:
        self._what = what

    def refresh(self) -> None:
        filled = round(self.n / 100 * _WIDTH)
        bar = "█" * filled + "░" * (_WIDTH - filled)
        sys.stderr.write(f"\r{self._what} {bar} {self.n:3d} %")
        sys.stderr.flush()

    def close(self) -> None:
        sys.stderr.write("\r" + " " * (_WIDTH + len(self._what) + 7) + "\r")
        sys.stderr.flush()
