"""``%gpu SPEC``: choose devices for this kernel, save the choice, restart where it is too late."""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import Any

from gpumagic.cuda import failure
from gpumagic.cuda.process_state import STATE
from gpumagic.errors import DeviceError, RestartError, SpecError
from gpumagic.magics import output
from gpumagic.magics.argument_types import percentage, size
from gpumagic.magics.extension import of
from gpumagic.magics.gpu import publishing, saved_choice
from gpumagic.magics.output import LiveDisplay
from gpumagic.results import Holders, Selection, Status
from gpumagic.selection import apply, cpu_threads, gate, launch_blocking
from gpumagic.selection.spec import Spec, Wants


def wants(options: argparse.Namespace, magics: Any, spec: str) -> Wants:
    """Return what ``auto`` requires of a device, by the options or by the configuration.

    Raises:
        SpecError: a configured value is not valid.
    """
    if spec.split(" ")[0].lower() != "auto":
        return Wants()
    try:
        min_free, max_util = options.min_free, options.max_util
        if min_free is None and magics.min_free:
            min_free = size(magics.min_free)
        if max_util is None and magics.max_util:
            max_util = percentage(magics.max_util)
    except argparse.ArgumentTypeError as error:
        raise SpecError(f"%config GpuMagic: {error}") from None
    return Wants(min_free=min_free, max_util=max_util, idle=options.idle)


def choose_for_kernel(
    magics: Any, spec: Spec, wants: Wants, options: argparse.Namespace, *, silent: bool
) -> Selection:
    """Choose devices until the next choice; does not return where the kernel is restarted.

    Raises:
        DeviceError: the devices cannot be chosen; nothing was changed.
        RestartError: the restart was refused; nothing was changed.
    """
    shell = magics.shell
    saved = saved_choice.saved(shell) if options.save else None
    before = STATE.snapshot()
    try:
        chosen = choose(shell, spec, wants, options, restart=options.restart)
    except KeyboardInterrupt:
        raise DeviceError("interrupted; nothing was changed") from None
    if options.save:
        chosen = saved_choice.save(shell, spec, chosen)
    chosen, needed = _with_state(chosen, options)
    if options.restart and (needed or chosen.status == "too-late"):
        try:
            from gpumagic.magics.gpu import restarting

            restarting.begin(magics, chosen, options, silent=silent)
        except BaseException as failure:
            STATE.restore(before)
            if options.save:
                saved_choice.put_back(shell, saved)
            if isinstance(failure, KeyboardInterrupt):
                raise RestartError("interrupted; this kernel goes on as it was") from None
            raise
    if options.restart and chosen.status in ("unchanged", "applied"):
        note = "not restarted: the choice is in effect in this process, which keeps all variables"
        chosen = replace(chosen, notes=(note, *chosen.notes))
    return cpu_threads.with_threads(chosen, spec, options.threads)


def _with_state(chosen: Selection, options: argparse.Namespace) -> tuple[Selection, bool]:
    """Add a note where CUDA has failed; return also whether the process needs a restart anyway.

    With ``--restart`` the context is checked; otherwise only the errors of cells are known.
    """
    dead = failure.check_context() if options.restart else failure.dead_context()
    if dead is not None:
        note = (
            f"CUDA has failed in this process ({dead}): %gpu {chosen.requested} --restart starts "
            "it again"
        )
        chosen = replace(chosen, notes=(note, *chosen.notes))
    return chosen, dead is not None or options.blocking or launch_blocking.is_temporary()


def choose(
    shell: Any,
    spec: Spec,
    wants: Wants,
    options: argparse.Namespace,
    *,
    restart: bool = False,
) -> Selection:
    """Choose devices by the variables, or by the gate for ``--soft``; an exception undoes it.

    With ``restart`` this program is to be replaced where it is too late.
    """
    before = STATE.snapshot()
    try:
        if options.soft:
            existing = _existing(shell) if spec.kind == "off" else None
            return replace(gate.choose(spec, wants), existing=existing)
        lifted = spec.kind in ("on", "reset") and gate.lift()
        chosen = _choose_by_variables(shell, spec, wants, options, restart)
        publishing.update(of(shell))
    except BaseException:
        STATE.restore(before)
        raise
    if not lifted:
        return gate.under_gate(chosen)
    # The variables may be unchanged; which devices this kernel can use is not.
    status: Status = "applied" if chosen.status == "unchanged" else chosen.status
    return replace(chosen, status=status, notes=("the gate is lifted", *chosen.notes))


def _existing(shell: Any) -> Holders:
    """Return what holds GPU memory, which a gate does not free."""
    from gpumagic.memory.attribution import holders

    return holders(shell=shell)


def _choose_by_variables(
    shell: Any, spec: Spec, wants: Wants, options: argparse.Namespace, restart: bool
) -> Selection:
    with LiveDisplay(shell, quiet=options.quiet) as live:

        def progress(waited: float, reason: str) -> None:
            live.text(f"waiting for GPUs: {reason} ({waited:.0f} s of {options.wait:.0f} s)")

        try:
            return apply.choose(
                spec,
                wants,
                wait=options.wait,
                progress=progress,
                claim=is_claimed(shell, options),
                restart=restart,
            )
        except KeyboardInterrupt:
            if not options.wait:
                raise
            raise DeviceError("interrupted while waiting for GPUs; nothing was changed") from None


def is_claimed(shell: Any, options: argparse.Namespace) -> bool:
    """Return whether a choice is to be claimed, by the options and the configuration."""
    return bool(of(shell).magics.claim) and not options.no_claim


def warn(chosen: Selection, *, shown: bool) -> None:
    """Warn in a line if the choice is too late, below the result that says why, if it was shown.

    Where the user has made warnings errors this raises: the caller has shown and stored the result.
    """
    if chosen.status != "too-late":
        return
    if not shown:
        output.warn(str(chosen.problem or chosen.message))
        return
    known = "in effect in this process" if chosen.cuda_initialized else "verified"
    output.warn(f"the choice '{chosen.requested}' is not {known}: see above")
