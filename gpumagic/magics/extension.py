"""What gpumagic keeps in one shell, from the first statement after loading until unloading.

The magics find that of a shell by `of`.
"""

from __future__ import annotations

import os
import sys
import weakref
from collections.abc import Iterable
from importlib import import_module
from types import FrameType
from typing import TYPE_CHECKING, Any

from gpumagic.cells.hooks import CellHook, CellHooks
from gpumagic.cells.records import keep_numbers
from gpumagic.cuda import init_trace, nvml_check
from gpumagic.cuda.process_state import STATE

if TYPE_CHECKING:
    from gpumagic.magics.gpu.watch_thread import Watch
    from gpumagic.memory.history import History
    from gpumagic.memory.per_cell import EveryCell
    from gpumagic.results.base import Result
    from gpumagic.results.memory import MemoryReport
    from gpumagic.results.timing import CudaTiming
    from gpumagic.timing.per_cell import CellTimer

#: The name under which IPython registers our magics.
_NAME = "GpuMagic"
#: What undoes the changes of a process, whatever its shells: a module, if it was used, and the
#: function of it; and whether a reload, which keeps choices, leaves it out.
_OF_PROCESS = (
    ("selection.gate", "lift", False),
    ("memory.limit", "LIMIT.lift", False),
    ("memory.peak_ledger", "LEDGER.leave", False),
    ("cuda.nvml", "close", False),
    ("selection.environment", "undo", True),
    ("selection.cpu_threads", "undo", True),
    ("selection.claims", "release", True),
)


class Extension:
    """The state of gpumagic in one shell."""

    def __init__(self, shell: Any, magics: Any) -> None:
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
        #: The cluster that ``%gpu --cluster`` has named last; None for that of ``%px``.
        self.cluster: str | None = None
        #: Whether the first table has shown what to try next.
        self.has_hinted = False
        #: The result that was displayed last, and the cell that displayed it. Not by its id, which
        #: a later result may have once this one is gone.
        self._displayed: tuple[weakref.ref[Result], int] | None = None

    def start(self, hooks: Iterable[CellHook[Any]]) -> None:
        """Watch the cells: for what initialises CUDA, and by these hooks."""
        if self.magics.sets_check:
            STATE.nvml_check_set = True
        undo = self.magics.undo.callback
        for module, function, is_choice in _OF_PROCESS:
            undo(_undo_of_process, f"gpumagic.{module}", function, is_choice)
        undo(init_trace.detach)
        undo(self.hooks.clear)
        undo(self._leave_cluster)
        undo(self._end_modes)
        undo(keep_numbers(self.shell.compile))
        init_trace.attach(self.shell, self.hooks)
        for hook in hooks:
            self.hooks.add(hook)
        if "torch" in sys.modules:
            # All GPUs may have been hidden when torch tried to initialise CUDA.
            from gpumagic.selection.apply import note_hiding

            note_hiding()

    def own_variables(self) -> set[str]:
        """Return the environment variables that loading has set."""
        return {nvml_check.VARIABLE} if nvml_check.is_ours() else set()

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

    def format_result(self, result: Result) -> Any:
        """Return a result's MIME bundle for IPython: one line if its cell has displayed it."""
        if self.was_displayed(result):
            return {"text/plain": repr(result)}
        from gpumagic.magics.terminal import mime_bundle

        return mime_bundle(self.shell, result)

    # --- unloading -------------------------------------------------------------------------------

    def release(self) -> None:
        """Bring parked memory back, before anything is undone.

        Raises:
            DeviceError: it cannot come back now.
        """
        if self.parking is not None:
            self.parking.release()

    def _end_modes(self) -> None:
        if self.watch is not None:
            self.watch.end("gpumagic was unloaded")
        if self.memory_history is not None:
            self.memory_history.release()
        for mode in (self.cell_memory, self.cell_timing):
            if mode is not None:
                mode.off()

    def _leave_cluster(self) -> None:
        connection = sys.modules.get("gpumagic.cluster.connection")
        if connection is not None:
            connection.close(self.shell)


def find(shell: Any) -> Extension | None:
    """Return the extension of ``shell``; None where gpumagic is not loaded."""
    magics = shell.magics_manager.registry.get(_NAME)
    return getattr(magics, "extension", None)


def of(shell: Any) -> Extension:
    """Return the extension of ``shell``, in which gpumagic is loaded."""
    extension = find(shell)
    assert extension is not None
    return extension


def _undo_of_process(module: str, function: str, is_choice: bool) -> None:
    if module not in sys.modules or (is_choice and _reloading()):
        return
    call: Any = import_module(module)
    for name in function.split("."):
        call = getattr(call, name)
    call()


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
