"""``%gpu watch``, ``%gpu watch off`` and ``%gpu plot``: the devices over time."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from gpumagic.errors import GpuMagicError, SpecError
from gpumagic.magics.extension import find
from gpumagic.magics.extension import of as extension_of
from gpumagic.magics.file_names import check_expanded
from gpumagic.magics.gpu import device_table
from gpumagic.magics.gpu.watch_output import CellOutput
from gpumagic.magics.gpu.watch_thread import MOVED, Watch
from gpumagic.magics.output import LiveDisplay, show_picture, write_picture
from gpumagic.magics.terminal import is_console
from gpumagic.results import DeviceTable, Result
from gpumagic.results.watch import WatchHistory
from gpumagic.system.paths import output_path
from gpumagic.system.text import plural

#: Seconds between two samples, and the least between those of a panel beside running cells.
_EVERY, _LEAST = 1.0, 0.1
_NEW_VIEW = (
    "To keep it in view in JupyterLab: right-click here, 'Create New View for Output' puts it "
    "beside the notebook"
)


def watch(shell: Any, options: argparse.Namespace) -> Result:
    """Watch the devices: in a notebook by a panel while cells run, else until interrupted."""
    if hasattr(shell, "kernel") and not is_console(shell):
        return _panel(shell, options)
    return _foreground(shell, options)


def watch_off(shell: Any) -> WatchHistory:
    """End the panel and return its history.

    Raises:
        SpecError: there is none.
    """
    current = of(shell)
    if not current.running:
        raise SpecError("no panel is running; '%gpu watch' begins one")
    current.end("'%gpu watch off'")
    return current.history()


def plot(shell: Any, options: argparse.Namespace) -> WatchHistory:
    """Draw the history into the notebook or into a file, and return it.

    Raises:
        SpecError: there are no samples, or the file cannot be written.
        DependencyError: matplotlib is not installed.
    """
    if options.file is not None:
        check_expanded(options.file)
    history = of(shell).history()
    if not history.samples:
        raise SpecError("there is nothing to draw yet; '%gpu watch' begins to record the GPUs")
    path = output_path(options.file) if options.file is not None else None
    if path is None and options.quiet:
        return history
    picture = history.plot()
    if path is not None:
        write_picture(picture, path)
    if not options.quiet:
        show_picture(shell, picture, _title(history), path, "%gpu plot")
    options.quiet = True  # the picture is what is shown
    return history


def _title(history: WatchHistory) -> str:
    drawn, known = len(history.busy_devices()), len(history.devices)
    title = f"{plural(drawn, 'GPU')} over time, with the cells"
    return f"{title}; {plural(known - drawn, 'idle GPU')} left out" if drawn < known else title


def of(shell: Any) -> Watch:
    """Return the watch of a shell, made at the first call."""
    extension = extension_of(shell)
    if extension.watch is None:
        extension.watch = Watch(shell, extension.hooks)
    return extension.watch


@contextmanager
def ended_for_restart(shell: Any) -> Iterator[None]:
    """End the panel for a block that replaces the process; it goes on if the block raises."""
    extension = find(shell)
    current = None if extension is None else extension.watch
    if current is None or not current.running:
        yield
        return
    current.end("the kernel was restarted", samples_lost=True)
    try:
        yield
    except BaseException:
        with suppress(GpuMagicError):  # the reason for no restart is raised instead
            current.resume()
        raise


def _panel(shell: Any, options: argparse.Namespace) -> WatchHistory:
    """Leave a panel that a thread updates.

    Raises:
        SpecError: an option does not fit, or the output is captured.
        DeviceError: NVML is missing or does not start.
    """
    every = _EVERY if options.every is None else options.every
    if options.processes:
        raise SpecError("-p: the panel shows no processes; '%gpu -p' lists them")
    if every < _LEAST:
        raise SpecError(f"--every: at least {_LEAST:g} s beside running cells, not {every:g}")
    current = of(shell)
    show = None if options.quiet else CellOutput(shell).show
    hint = "" if current.has_hinted or show is None else _NEW_VIEW
    current.begin(show, every, hint=hint)
    current.has_hinted = current.has_hinted or show is not None
    options.quiet = True  # the panel is what is shown
    return current.history()


def _foreground(shell: Any, options: argparse.Namespace) -> Result:
    """Show the table repeatedly in one place until interrupted; return the last one."""
    current = of(shell)
    current.end(MOVED)
    current.forget()

    def sample() -> DeviceTable:
        found = device_table.table(processes=options.processes)
        current.log.add(time.time(), found.devices)
        return found

    table = sample()
    if not table.devices:
        current.forget()
        return table
    with LiveDisplay(shell, quiet=options.quiet, console=is_console(shell)) as live:
        with suppress(KeyboardInterrupt):  # ends it
            live.result(table)
            while True:
                time.sleep(_EVERY if options.every is None else options.every)
                table = sample()
                live.result(table)
        live.keep()
    options.quiet = True  # the last table is on the screen already
    return table
