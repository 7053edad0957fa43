"""``%%gpu SPEC``: choose devices for one cell, and put the choice before it back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import get_ident
from typing import Any

from gpumagic.cells.compile import compile_cell
from gpumagic.cuda import device_table, driver, init_failure
from gpumagic.cuda.this_process import STATE
from gpumagic.errors import DeviceError
from gpumagic.magics import delivery
from gpumagic.magics.gpu import choosing
from gpumagic.magics.gpu.gpu_options import ChoiceOptions
from gpumagic.magics.magic_state import MagicState
from gpumagic.results.selection import Selection
from gpumagic.selection import choice_undo, cpu_threads
from gpumagic.selection.spec import parse
from gpumagic.system.shell import Shell


def run(magics: MagicState, options: ChoiceOptions, cell: str, header: str) -> Any:
    """Run ``cell`` under a choice; return its value, or the selection for ``-o``."""
    spec = parse(" ".join(options.spec))
    shell = magics.shell
    compiled = compile_cell(shell, cell, header=header)
    selected: Selection | None = None

    @contextmanager
    def under_choice() -> Iterator[None]:
        """Choose devices for the block; restore the previous choice, also after an exception."""
        nonlocal selected
        before = choice_undo.take()
        chosen = choosing.without_gpu(magics, spec, options) or choosing.choose_here(
            magics, spec, options
        )
        if chosen.status == "too-late":
            choice_undo.restore(before)
            raise DeviceError(f"the cell did not run: {chosen.problem}")
        failed = STATE.init_failure.failed
        outer, STATE.cell_thread = STATE.cell_thread, get_ident()
        try:
            selected = chosen = cpu_threads.with_threads(chosen, spec, options.threads)
            if not options.quiet:
                delivery.show(shell, chosen)
            yield
        finally:
            STATE.cell_thread = outer
            started = driver.is_initialized() and not chosen.cuda_initialized
            choice_undo.restore(before, started=started)
            if not options.quiet and not chosen.cuda_initialized:
                with suppress(Exception, KeyboardInterrupt):  # the cell's own comes first
                    _say_what_stays(shell, failed)

    def finish(value: object) -> Any:
        delivery.store(shell, selected, options)  # it was shown above the cell's own output
        return delivery.value_of(value, selected, options)

    return compiled.run_within(under_choice(), finish)


def _say_what_stays(shell: Shell, failed: bool) -> None:
    """Say whether the cell initialised CUDA, or failed to, which cannot be undone.

    ``failed`` is whether CUDA had failed before.
    """
    if driver.is_initialized():
        delivery.say(
            shell,
            "The cell has initialised CUDA, so its choice of GPUs has become permanent for "
            "this process; the variables are put back for processes started from here.",
        )
        return
    if not failed and init_failure.has_failed(device_table.read()):
        delivery.say(
            shell,
            f"{init_failure.cause()}: it sees no GPU any more. To change that: "
            f"{init_failure.remedy()}.",
        )
