"""``%gpu`` and ``%%gpu``: the device table, and which devices this process sees."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gpumagic.errors import SpecError
from gpumagic.magics.gpu.gpu_options import (
    ChoiceOptions,
    DoctorOptions,
    EnginesOptions,
    PinOptions,
    RestartOptions,
    TableOptions,
    WatchOptions,
)
from gpumagic.magics.option_forms import PlotOptions
from gpumagic.magics.parsing import MagicLine

if TYPE_CHECKING:
    from gpumagic.magics.magic_state import MagicState
    from gpumagic.results.devices import DeviceTable

#: The options of a choice that outlast one cell.
_LASTING = ("--restart", "--keep", "--force", "--cluster")


def run(magics: MagicState, line: MagicLine, cell: str | None, _: object = None) -> Any:
    """Show the table, choose devices, or run ``cell`` under a choice.

    Raises:
        SpecError: the line does not fit.
    """
    options = line.options
    if cell is not None:
        if not (isinstance(options, ChoiceOptions) and options.spec):
            raise SpecError("%%gpu needs a choice of GPUs for the cell; for example: %%gpu off")
        for name in _LASTING:
            if name in line.given:
                raise SpecError(f"{name} goes with %gpu, not with %%gpu, which is for one cell")
    match options:
        case EnginesOptions() | PinOptions() | ChoiceOptions(cluster=True):
            from gpumagic.magics.gpu import engines

            return engines.run(magics, options)
        case ChoiceOptions():
            if cell is not None:
                from gpumagic.magics.gpu import one_cell

                return one_cell.run(magics, options, cell, f"%%gpu {line.written}")
            from gpumagic.magics.gpu import choosing

            return choosing.run(magics, options)
        case RestartOptions():
            from gpumagic.magics.gpu.restart import restarting

            restarting.restart(magics, options)
        case WatchOptions():
            from gpumagic.magics.gpu import watch

            return watch.run(magics.shell, options)
        case PlotOptions():
            from gpumagic.magics.gpu import watch

            return watch.plot(magics.shell, options)
        case TableOptions():
            return _show_table(magics, options)
        case DoctorOptions():
            from gpumagic.doctor import diagnose
            from gpumagic.magics.delivery import hand_over

            return hand_over(magics.shell, diagnose(), options)
    raise AssertionError(options)


def _show_table(magics: MagicState, options: TableOptions) -> Any:
    from gpumagic.magics.delivery import hand_over

    table = _table(processes=options.processes)
    returned = hand_over(magics.shell, table, options)
    if not (options.quiet or magics.has_hinted or table.cuda_failed):
        _hint(magics, table)
    return returned


def _table(*, processes: bool) -> DeviceTable:
    """Return the table; check whether CUDA has failed where it may have, which can take seconds."""
    from gpumagic.cuda import dead_context, init_failure
    from gpumagic.selection import soft_off
    from gpumagic.selection.table import devices

    found = devices(processes=processes)
    if not found.cuda_failed and init_failure.has_failed(found):
        found = devices(processes=processes)
    note = dead_context.note()
    if found.cuda_failed:
        note = f"To change that: {init_failure.remedy()}"
    notes = found.notes if note is None else (*found.notes, note)
    return replace(found, gated=soft_off.is_closed(), notes=notes)


def _hint(magics: MagicState, table: DeviceTable) -> None:
    """Show below the first table of a session what to try next."""
    from gpumagic.magics.delivery import say
    from gpumagic.results.devices import VIRTUAL

    magics.has_hinted = True
    more = "Try next: %%cudatime above a cell for its GPU time, %gpumem for GPU memory"
    none = f"{VIRTUAL}; why there is none: %gpu doctor"
    say(magics.shell, more if table.no_gpu is None else none)
