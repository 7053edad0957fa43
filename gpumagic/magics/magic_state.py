"""The state of the magics in one shell, from loading until unloading: settings, and what is on."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from IPython.core.magic import Magics
from traitlets import Bool, TraitError, Unicode, validate

from gpumagic.cells.hooks import CellHooks
from gpumagic.system.shell import Shell

if TYPE_CHECKING:
    from gpumagic.magics.gpu.watch_thread import Watch
    from gpumagic.memory.every_cell_memory import CellMeter
    from gpumagic.memory.history import History
    from gpumagic.results.base import Result
    from gpumagic.results.memory.memory_report import MemoryReport
    from gpumagic.results.timing.cuda_timing import CudaTiming
    from gpumagic.timing.cell_timer import CellTimer

#: The name under which IPython registers our magics and lists their settings.
NAME = "GpuMagic"


class MagicState(Magics):
    """The settings of ``%config GpuMagic``, and the state of the magics in one shell.

    `GpuMagic` adds the magics; every command gets it as ``magics``.
    """

    shell: Any  # by IPython's declaration it may be None
    quiet = Bool(
        False, help="Print nothing, as if every call had -q; no lines after cells either."
    ).tag(config=True)
    min_free = Unicode(
        "", help="The free memory that '%gpu auto' asks for without --min-free, e.g. '20GiB'."
    ).tag(config=True)
    explain_oom = Bool(True, help="Say below the traceback why GPU memory ran out.").tag(
        config=True
    )
    claim = Bool(
        True,
        help="Claim the chosen GPUs; 'auto' takes one that others claim only if no other fits.",
    ).tag(config=True)

    @validate("min_free")
    def _check_min_free(self, proposal: Any) -> str:
        from argparse import ArgumentTypeError

        from gpumagic.magics.argument_types import size

        value: str = proposal["value"]
        try:
            if value:
                size(value)
        except ArgumentTypeError as error:
            raise TraitError(f"GpuMagic.min_free: {error}") from None
        return value

    def __init__(self, shell: Any) -> None:
        super().__init__(shell=shell)
        #: What undoes the loading, the last change first.
        self.undo = ExitStack()
        #: The process that has loaded gpumagic: a process with another pid is a fork.
        self.pid = os.getpid()
        self.hooks = CellHooks(shell)
        #: ``%cudatime on``, ``%gpumem on`` and ``%gpumem record``; None until first asked for.
        self.cell_timing: CellTimer | None = None
        self.cell_memory: CellMeter | None = None
        self.memory_history: History | None = None
        #: ``%gpu watch``; None until first asked for.
        self.watch: Watch | None = None
        #: The results of ``%%cudatime --name``.
        self.named_timings: dict[str, CudaTiming] = {}
        #: The last report of ``%gpumem``, for the change since.
        self.memory_report: MemoryReport | None = None
        #: The cluster that ``%gpu --cluster`` has named last; None for that of ``%px``.
        self.cluster: str | None = None
        #: Whether the first table has shown what to try next.
        self.has_hinted = False
        #: The result that was displayed last, and the cell that displayed it. Not the result's id:
        #: a later result may get the same.
        self._displayed: tuple[Callable[[], Result | None], int] = (lambda: None, 0)

    def note_timing(self, name: str | None, timing: CudaTiming) -> bool:
        """Keep a timing under its name, in place of an earlier one, and for the cell's own line.

        An incomplete timing does not replace a complete one: then this returns False.
        """
        if self.cell_timing is not None:
            self.cell_timing.note_call(timing)
        before = None if name is None else self.named_timings.get(name)
        if before is not None and timing.partial and not before.partial:
            return False
        if name is not None:
            self.named_timings[name] = timing
        return True

    def note_displayed(self, result: Result) -> None:
        """Note that ``result`` was displayed: as this cell's value it is one line then."""
        self._displayed = (weakref.ref(result), self.shell.execution_count)

    def has_displayed(self, result: Result) -> bool:
        """Return whether the running cell has displayed ``result``."""
        displayed, cell = self._displayed
        return displayed() is result and cell == self.shell.execution_count


def find_state(shell: Shell) -> MagicState | None:
    """Return the state of gpumagic in ``shell``; None where it is not loaded."""
    state: MagicState | None = shell.magics_manager.registry.get(NAME)
    return state


def state_of(shell: Shell) -> MagicState:
    """Return the state of gpumagic in ``shell``, where it is loaded."""
    state: MagicState = shell.magics_manager.registry[NAME]
    return state
