"""What gpumagic adds to one shell: all of it is declared, and removed, here.

`loading` makes an `Extension`; the magics find that of a shell by `of`.
"""

from __future__ import annotations

import os
import sys
import weakref
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING, Any

from IPython.core.magic import Magics
from traitlets import Bool, Unicode

from gpumagic.cells.hooks import CellHook, CellHooks
from gpumagic.cuda import init_trace, nvml_check

if TYPE_CHECKING:
    from gpumagic.cells.compile import MagicCode
    from gpumagic.magics.gpu.watch_thread import Watch
    from gpumagic.memory.history import History
    from gpumagic.memory.per_cell import EveryCell
    from gpumagic.results import CudaTiming, MemoryReport
    from gpumagic.results.base import Result
    from gpumagic.timing.per_cell import CellTimer

#: The name under which IPython registers our magics and lists their settings.
NAME = "GpuMagic"
_MAGICS = ("gpu", "cudatime", "gpumem")

#: The class that every result is, by name: the module is imported when there is a result.
_RESULT = ("gpumagic.results.base", "Result")


class Settings(Magics):
    """Defaults of gpumagic's magics, set by ``%config GpuMagic``."""

    quiet = Bool(False, help="Print nothing, as with -q on every call; nor lines after cells.").tag(
        config=True
    )
    min_free = Unicode(
        "", help="What '%gpu auto' asks of a device when --min-free is not given, e.g. '20GiB'."
    ).tag(config=True)
    max_util = Unicode(
        "", help="What '%gpu auto' asks of a device when --max-util is not given, in percent."
    ).tag(config=True)
    explain_oom = Bool(
        True, help="Say below the traceback why GPU memory ran out ('%gpumem explain off' too)."
    ).tag(config=True)

    claim = Bool(
        True, help="Claim the GPUs that are chosen, and leave others' claims for last in 'auto'."
    ).tag(config=True)
    publish_notebook = Bool(
        False, help="Show other users the notebook's name and idle time with a claim."
    ).tag(config=True)

    def __init__(self, shell: Any) -> None:
        super().__init__(shell=shell)
        self.extension = Extension(shell, self)


class Extension:
    """The state of gpumagic in one shell. `unload` undoes all that `load` has done."""

    def __init__(self, shell: Any, magics: Settings) -> None:
        self.shell = shell
        self.magics = magics
        #: A process that has this extension and another pid is a fork.
        self.pid = os.getpid()
        self.hooks = CellHooks(shell)
        #: ``%cudatime on``, ``%gpumem on`` and ``%gpumem record``; None until first asked for.
        self.cell_timing: CellTimer | None = None
        self.cell_memory: EveryCell | None = None
        self.memory_history: History | None = None
        #: ``%gpu watch``; None until first asked for.
        self.watch: Watch | None = None
        #: ``%gpumem park``; None until first asked for.
        self.parking: Any = None
        #: The results of ``%%cudatime --name``.
        self.named_timings: dict[str, CudaTiming] = {}
        #: The last report of ``%gpumem``, for the change since.
        self.memory_report: MemoryReport | None = None
        #: Publishes the notebook's state with the claim; None where that is not published.
        self.publishing: CellHook[None] | None = None
        #: The cluster that ``%gpu --cluster`` has named last; None for that of ``%px``.
        self.cluster: str | None = None
        #: The result that was displayed last, and the cell that displayed it. Not by its id, which
        #: a later result may have once this one is gone.
        self._displayed: tuple[weakref.ref[Result], int] | None = None
        self._transformer: MagicCode | None = None
        self._replaced: dict[str, dict[str, Any]] = {}
        #: The matcher of IPython's completer; None before IPython 8.6.
        self._matcher: Any = None

    # --- results on the screen -------------------------------------------------------------------

    def note_displayed(self, result: Result) -> None:
        """Note that ``result`` was displayed: as this cell's value it is one line then."""
        self._displayed = (weakref.ref(result), self.shell.execution_count)

    def was_displayed(self, result: Result) -> bool:
        """Return whether this cell has displayed ``result``."""
        if self._displayed is None:
            return False
        displayed, cell = self._displayed
        return displayed() is result and cell == self.shell.execution_count

    def format_result(self, result: Result, include: Any = None, exclude: Any = None) -> Any:
        """Return a result's MIME bundle for IPython: one line if its cell has displayed it."""
        if self.was_displayed(result):
            return {"text/plain": repr(result)}
        from gpumagic.magics.terminal import mime_bundle

        return mime_bundle(self.shell, result)

    # --- loading ---------------------------------------------------------------------------------

    def load(self, transformer: MagicCode, matcher: Any) -> None:
        """Register with the shell.

        ``transformer`` compiles the statements of magics; ``matcher`` is for completion, or None.
        """
        shell = self.shell
        self._replaced = {
            kind: {name: shell.magics_manager.magics[kind].get(name) for name in _MAGICS}
            for kind in ("line", "cell")
        }
        shell.register_magics(self.magics)
        self._transformer = transformer
        shell.input_transformers_post.append(transformer)
        shell.display_formatter.mimebundle_formatter.for_type_by_name(*_RESULT, self.format_result)
        nvml_check.set_variable()
        init_trace.attach(shell, self.hooks)
        if matcher is not None:
            self._matcher = matcher
            shell.Completer.custom_matchers.append(matcher)

    def own_variables(self) -> set[str]:
        """Return the environment variables that loading has set."""
        return {nvml_check.VARIABLE} if nvml_check.is_ours() else set()

    # --- unloading -------------------------------------------------------------------------------

    def unload(self) -> None:
        """Undo everything; a failure is one line, and the rest is undone nevertheless.

        Raises:
            DeviceError: parked memory cannot come back now; nothing was undone.
        """
        if self.parking is not None:
            self.parking.release()
        for step in self._steps():
            try:
                step()
            except Exception as error:  # the user may have unloaded a part of torch
                from gpumagic.system import text

                said = text.named(error)
                print(f"gpumagic: not everything could be undone ({said})", file=sys.stderr)

    def _steps(self) -> list[Callable[[], object]]:
        return [
            self._end_modes,
            self._leave_cluster,
            self.hooks.clear,
            init_trace.detach,
            self._unregister,
            _lift_gate,
            _lift_limit,
            _restore_torch,
            _close_nvml,
            _undo_choices,
            nvml_check.withdraw,
        ]

    def _end_modes(self) -> None:
        if self.watch is not None:
            self.watch.end("gpumagic was unloaded", samples_lost=True)
        if self.memory_history is not None:
            self.memory_history.release()
        for mode in (self.cell_memory, self.cell_timing):
            if mode is not None:
                mode.off()

    def _leave_cluster(self) -> None:
        if "gpumagic.cluster.connection" in sys.modules:
            from gpumagic.cluster import connection

            connection.close(self.shell)

    def _unregister(self) -> None:
        shell = self.shell
        if self._matcher in shell.Completer.custom_matchers:
            shell.Completer.custom_matchers.remove(self._matcher)
        if self._transformer in shell.input_transformers_post:
            shell.input_transformers_post.remove(self._transformer)
        formatter = shell.display_formatter.mimebundle_formatter
        formatter.deferred_printers.pop(_RESULT, None)
        for type_ in [t for t in formatter.type_printers if t.__module__ == _RESULT[0]]:
            formatter.pop(type_)
        for kind, magics in self._replaced.items():
            for name, before in magics.items():
                if before is None:
                    shell.magics_manager.magics[kind].pop(name, None)
                else:
                    shell.magics_manager.magics[kind][name] = before
        shell.magics_manager.registry.pop(NAME, None)
        if self.magics in shell.configurables:
            shell.configurables.remove(self.magics)


def find(shell: Any) -> Extension | None:
    """Return the extension of ``shell``; None where gpumagic is not loaded."""
    magics = shell.magics_manager.registry.get(NAME)
    return magics.extension if isinstance(magics, Settings) else None


def of(shell: Any) -> Extension:
    """Return the extension of ``shell``, in which gpumagic is loaded."""
    extension = find(shell)
    assert extension is not None
    return extension


# --- what a process has, whatever its shells -----------------------------------------------------


def _lift_gate() -> None:
    if "gpumagic.selection.gate" in sys.modules:
        from gpumagic.selection import gate

        gate.lift()


def _lift_limit() -> None:
    if "gpumagic.memory.limit" in sys.modules:
        from gpumagic.memory.limit import LIMIT

        LIMIT.lift()


def _restore_torch() -> None:
    if "gpumagic.memory.peak_ledger" in sys.modules:
        from gpumagic.memory.peak_ledger import LEDGER

        LEDGER.leave()


def _close_nvml() -> None:
    if "gpumagic.cuda.nvml" in sys.modules:
        from gpumagic.cuda import nvml

        nvml.close()


def _undo_choices() -> None:
    """Undo the choices of GPUs and threads, except when the extension is reloaded."""
    if _reloading():
        return
    if "gpumagic.selection.environment" in sys.modules:
        from gpumagic.selection import environment

        environment.undo()
    if "gpumagic.selection.cpu_threads" in sys.modules:
        from gpumagic.selection import cpu_threads

        cpu_threads.undo()
    if "gpumagic.selection.claims" in sys.modules:
        from gpumagic.selection import claims

        claims.undo()


def _reloading() -> bool:
    """Return whether IPython unloads only to load again (``%reload_ext``), which keeps choices.

    Only the calling function shows it: IPython passes no argument.
    """
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_code.co_name == "reload_extension":
            return True
        frame = frame.f_back
    return False
