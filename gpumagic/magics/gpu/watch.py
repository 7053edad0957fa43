"""``%gpu watch``, ``%gpu watch off`` and ``%gpu plot``: the devices over time."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

from gpumagic.cuda import device_table
from gpumagic.errors import SpecError
from gpumagic.magics.delivery import hand_over, say, show_plot, store
from gpumagic.magics.gpu import history_plot
from gpumagic.magics.gpu.gpu_options import WatchOptions
from gpumagic.magics.gpu.watch_history import WatchPanel
from gpumagic.magics.gpu.watch_thread import Watch
from gpumagic.magics.magic_state import state_of
from gpumagic.magics.option_forms import PlotOptions
from gpumagic.results.base import as_html
from gpumagic.system.shell import Shell
from gpumagic.wording import plural

#: The least seconds between two samples beside running cells.
_LEAST = 0.1
_RECORDS = (
    "The GPUs are recorded until '%gpu watch off'; '%gpu plot FILE' draws them. For a live table "
    "type 'watch gpumagic table' in another terminal."
)


def run(shell: Shell, options: WatchOptions) -> Any:
    """Watch the devices, or end that.

    In a notebook a panel shows it while cells run; in a terminal, and with -q, it is only recorded.

    Raises:
        SpecError: there is no panel to end, an option does not fit, or the output is captured.
        DeviceError: there is no GPU that can be watched.
    """
    current = of(shell)
    if options.switch == "off":
        if not current.running and current.failure:
            current.end(current.failure)
            raise SpecError(f"the panel has ended: {current.failure}; see '%gpu plot'")
        if not current.running:
            raise SpecError("no panel is running; '%gpu watch' begins one")
        current.end("'%gpu watch off'; '%gpu plot' draws the samples")
        return hand_over(shell, current.history(), options)
    device_table.check(device_table.read())
    if options.every < _LEAST:
        raise SpecError(f"--every: at least {_LEAST:g} s beside cells, not {options.every:g}")
    shown = hasattr(shell, "kernel") and not options.quiet
    current.begin(_Output(shell).show if shown else lambda panel: None, options.every)
    if not (shown or options.quiet):
        say(shell, _RECORDS)
    return store(shell, current.history(), options)


def plot(shell: Shell, options: PlotOptions) -> Any:
    """Draw the history into the notebook or into a file.

    Raises:
        SpecError: there are no samples, or the file cannot be written.
        DependencyError: matplotlib is not installed.
    """
    history = of(shell).history()
    if not history.samples:
        raise SpecError("there is nothing to draw yet; '%gpu watch' begins to record the GPUs")
    if options.file or not options.quiet:  # else the history needs no matplotlib
        plot = history_plot.draw(history)
        title = f"{plural(len(plot.panels), 'GPU')} over time, with the cells"
        show_plot(shell, plot, title, "%gpu plot", options)
    return store(shell, history, options)


def of(shell: Shell) -> Watch:
    """Return the watch of a shell, made at the first call."""
    state = state_of(shell)
    if state.watch is None:
        state.watch = Watch(state.hooks)
        state.undo.callback(state.watch.end, "gpumagic was unloaded")
    return state.watch


class _Output:
    """An output of the current cell, which any thread can update.

    Updates are sent to the front end directly: publishing them as IPython does would flush the
    user's streams in another thread, and count them to the cell that is running then.

    Raises:
        SpecError: the output of this cell is captured and not shown.
    """

    def __init__(self, shell: Shell) -> None:
        self._publisher = shell.display_pub
        self._session: Any = getattr(self._publisher, "session", None)
        if self._session is None:
            raise SpecError("%gpu watch: the output of this cell is captured, not shown: no panel")
        self._parent = self._publisher.parent_header
        self._transient = {"display_id": uuid4().hex}
        self._is_shown = False

    def show(self, panel: WatchPanel) -> None:
        """Show the panel, or replace what is shown."""
        data = {"text/html": as_html(panel), "text/plain": str(panel)}
        if not self._is_shown:
            self._is_shown = True
            self._publisher.publish(data, transient=self._transient)
            return
        content = {"data": data, "metadata": {}, "transient": self._transient}
        message = self._session.msg("update_display_data", content, parent=self._parent)
        self._session.send(self._publisher.pub_socket, message, ident=self._publisher.topic)
