"""``%gpu`` and ``%%gpu``: the device table, and which devices this process sees."""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import Any

from gpumagic.cuda import failure
from gpumagic.errors import SpecError
from gpumagic.magics.delivery import hand_over, say
from gpumagic.magics.gpu.gpu_options import LASTING
from gpumagic.magics.parsing import MagicLine, split
from gpumagic.magics.shell_state import Magics
from gpumagic.results.base import Result
from gpumagic.results.devices import VIRTUAL, DeviceTable
from gpumagic.results.selection import Selection
from gpumagic.selection import remedies, soft_off
from gpumagic.selection.spec import parse
from gpumagic.selection.table import devices


def run(magics: Magics, parsed: MagicLine, cell: str | None, _: object = None) -> Any:
    """Show the table, choose devices, or run ``cell`` under a choice."""
    options = parsed.options
    options.typed = shlex.join(["%gpu", *split(parsed.written.strip().removesuffix(";"))])
    text = " ".join(options.spec)
    if cell is not None:
        if not text:
            raise SpecError("%%gpu needs a choice of GPUs for the cell; for example: %%gpu off")
        for name in LASTING:
            if name in parsed.given:
                raise SpecError(f"{name} goes with %gpu, not with %%gpu, which is for one cell")
    if options.cluster or parsed.verb in ("cluster", "pin"):
        from gpumagic.magics import cluster

        return cluster.run(magics, parsed.verb, options)
    if parsed.verb == "restart":
        from gpumagic.magics.gpu import restarting

        restarting.restart(magics, options)
    if parsed.verb in ("watch", "plot"):
        from gpumagic.magics.gpu import watch

        return watch.run(parsed.verb, magics.shell, options, _table)
    result: Result
    if text:
        from gpumagic.magics.gpu import choosing

        if cell is not None:
            return choosing.run_cell(magics, parse(text), options, cell, f"%%gpu {parsed.written}")
        result = choosing.choose_for_kernel(magics, parse(text), options)
    elif parsed.verb == "doctor":
        from gpumagic.doctor import diagnose

        result = diagnose()
    else:
        result = _table(processes=options.processes)
    returned = hand_over(magics.shell, result, options)
    if isinstance(result, Selection):
        choosing.warn(result, shown=not options.quiet)
    elif isinstance(result, DeviceTable) and not options.quiet:
        _hint(magics, result)
    return returned


def _hint(magics: Magics, table: DeviceTable) -> None:
    """Show below the first table of a session what to try next."""
    if magics.state.has_hinted:
        return
    magics.state.has_hinted = True
    more = "Try next: %%cudatime above a cell for its GPU time, %gpumem for GPU memory"
    say(
        magics.shell, more if table.no_gpu is None else f"{VIRTUAL}; why there is none: %gpu doctor"
    )


def _table(*, processes: bool) -> DeviceTable:
    """Return the table; check whether CUDA has failed where it may have, which can take seconds."""
    found = devices(processes=processes)
    if not found.cuda_failed and failure.has_failed(found):
        found = devices(processes=processes)
    note = remedies.dead_context_note()
    notes = found.notes if note is None else (*found.notes, note)
    return replace(found, gated=soft_off.is_closed(), notes=notes)
