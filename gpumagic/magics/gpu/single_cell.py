"""``%%gpu SPEC``: run one cell under a choice of devices, and undo the choice."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from gpumagic.cells.compile import compile_cell
from gpumagic.cuda import devices, driver, failure
from gpumagic.cuda.process_state import STATE
from gpumagic.magics.gpu import choosing
from gpumagic.magics.output import hand_over, say, show
from gpumagic.results.selection import Selection
from gpumagic.selection import cpu_threads, environment
from gpumagic.selection.auto import Wants
from gpumagic.selection.spec import Spec


def run(
    magics: Any, spec: Spec, wants: Wants, options: argparse.Namespace, cell: str, header: str
) -> Any:
    """Run ``cell`` under a choice; return its value, or the selection for ``-o``."""
    __tracebackhide__ = True
    shell = magics.shell
    compiled = compile_cell(shell, cell, header=header)
    selections: list[Selection] = []

    def finish(value: Any) -> Any:
        shown = argparse.Namespace(**{**vars(options), "quiet": True})
        returned = hand_over(shell, selections[0], shown)
        if returned is None:
            return value
        if value is not None:
            shell.displayhook(value)
        return returned

    scope = _choice(magics, spec, wants, options, selections.append)
    return compiled.run_within(scope, finish)


@contextmanager
def _choice(
    magics: Any,
    spec: Spec,
    wants: Wants,
    options: argparse.Namespace,
    chosen_as: Callable[[Selection], None],
) -> Iterator[None]:
    """Choose devices for the block; restore the previous choice, also after an exception."""
    __tracebackhide__ = True
    before = STATE.snapshot()
    chosen = choosing.choose(magics, spec, wants, options)
    failed = STATE.init_failure.failed
    try:
        chosen = cpu_threads.with_threads(chosen, spec, options.threads)
        chosen_as(chosen)
        if not options.quiet:
            show(magics.shell, chosen)
        choosing.warn(chosen, shown=not options.quiet)
        yield
    finally:
        failure.note_mask(environment.now())
        STATE.restore(before)
        if not options.quiet and not chosen.cuda_initialized:
            with suppress(Exception, KeyboardInterrupt):  # the cell's own exception comes first
                _say_what_stays(magics.shell, failed)


def _say_what_stays(shell: Any, failed: bool) -> None:
    """Say whether the cell initialised CUDA, or failed to, which cannot be undone.

    ``failed`` is whether CUDA had failed before.
    """
    if driver.is_initialized():
        say(
            shell,
            "The cell has initialised CUDA, so its choice of GPUs has become permanent for "
            "this kernel; the variables are put back for processes started from here.",
        )
        return
    if not failed and failure.has_failed(devices.devices(processes=False)):
        say(
            shell,
            f"{failure.start_cause()}: this kernel sees no GPU any more. To change that: "
            "%gpu on --restart, or restart the kernel.",
        )
