"""``%gpu SPEC``: choose devices for this process, restart it where it is too late."""

from __future__ import annotations

from dataclasses import replace
from threading import get_ident
from typing import Any

from gpumagic.cuda import dead_context, device_table, driver
from gpumagic.cuda.this_process import STATE
from gpumagic.errors import DeviceError, SpecError
from gpumagic.magics import delivery
from gpumagic.magics.argument_types import size
from gpumagic.magics.gpu.gpu_options import AutoOptions, ChoiceOptions
from gpumagic.magics.live_display import LiveDisplay
from gpumagic.magics.magic_state import MagicState
from gpumagic.results.devices import VIRTUAL
from gpumagic.results.selection import Selection, Status
from gpumagic.selection import apply, choice_undo, cpu_threads, environment, soft_off
from gpumagic.selection.auto import NO_WANTS, Wants
from gpumagic.selection.spec import Spec, parse


def wants(magics: MagicState, options: ChoiceOptions) -> Wants:
    """Return how to choose, and what ``auto`` requires, by the options or the configuration."""
    how = Wants(claim=magics.claim and not options.no_claim, restart=options.restart)
    if not isinstance(options, AutoOptions):
        return how
    min_free = options.min_free
    if min_free is None and magics.min_free:
        min_free = size(magics.min_free)
    return replace(how, min_free=min_free, idle=options.idle, wait=options.wait)


def run(magics: MagicState, options: ChoiceOptions) -> Any:
    """Choose devices until the next choice."""
    spec = parse(" ".join(options.spec))
    chosen = without_gpu(magics, spec, options) or _choose_for_kernel(magics, spec, options)
    returned = delivery.hand_over(magics.shell, chosen, options)
    if chosen.status == "too-late":  # last: the user may have made warnings errors
        what = "in effect in this process" if chosen.cuda_initialized else "verified"
        seen = f"the choice '{chosen.requested}' is not {what}: see above"
        delivery.warn(str(chosen.problem) if options.quiet else seen)
    return returned


def without_gpu(magics: MagicState, spec: Spec, options: ChoiceOptions) -> Selection | None:
    """Return what ``auto`` without conditions chooses where there is no GPU: nothing.

    So a notebook or a cell runs as it is on such a machine; one that needs a GPU says which, or
    how free.
    """
    if spec.kind != "auto" or spec.count > 1 or wants(magics, options) != NO_WANTS:
        return None
    table = device_table.read()
    if table.no_gpu is None:
        return None
    now, notes = environment.now(), (VIRTUAL,)
    return Selection(spec.text, now, "unchanged", no_gpu=table.no_gpu, notes=notes)


def _choose_for_kernel(magics: MagicState, spec: Spec, options: ChoiceOptions) -> Selection:
    """Choose devices; does not return where the kernel is restarted.

    Raises:
        DeviceError: the devices cannot be chosen; nothing was changed.
        RestartError: the restart was refused; nothing was changed.
    """
    before = choice_undo.take()
    try:
        chosen = choose_here(magics, spec, options)
    except KeyboardInterrupt:
        raise DeviceError("interrupted; nothing was changed") from None
    # Without --restart only the errors of cells are known.
    dead = dead_context.check() if options.restart else STATE.dead_context
    if options.restart and (dead is not None or chosen.status == "too-late"):
        from gpumagic.magics.gpu.restart import restarting

        try:
            restarting.begin(magics, spec, options)
        except restarting.Restarting:
            raise
        except BaseException:
            choice_undo.restore(before)
            raise
    if dead is not None:
        note = f"{dead}: %gpu {chosen.requested} --restart starts it again"
        chosen = replace(chosen, notes=(note, *chosen.notes))
    elif options.restart:
        note = "not restarted: the choice is in effect in this process, which keeps all variables"
        if options.keep is not None:
            note += f"; for a fresh one: %gpu restart --keep {' '.join(options.keep)}"
        chosen = replace(chosen, notes=(note, *chosen.notes))
    return cpu_threads.with_threads(chosen, spec, options.threads)


def choose_here(magics: MagicState, spec: Spec, options: ChoiceOptions) -> Selection:
    """Choose devices by the variables; close the gate for ``--soft`` where that is too late.

    An exception undoes it.
    """
    if STATE.cell_thread not in (None, get_ident()):
        raise SpecError("a %%gpu cell is running, and would undo this choice; choose when it ends")
    with choice_undo.undone_on_error() as before:
        if options.soft and spec.kind != "off":
            raise SpecError(f"--soft goes with off; for other GPUs: %gpu {spec.text} --restart")
        # A process started anew has none, and what it keeps is read from the GPU here.
        lifted = (spec.kind in ("on", "reset") or options.restart) and soft_off.lift()
        # An earlier choice is in effect again: 'on' here undoes only the gate.
        again = lifted and spec.kind == "on" and driver.is_initialized()
        if again:
            chosen = apply.choose_as_read(spec)
        else:
            chosen = _choose_by_variables(magics, spec, options)
        if options.soft and chosen.status == "too-late":
            choice_undo.restore(before)
            return soft_off.close(spec.text)
    if not lifted:
        return soft_off.under_gate(chosen)
    # The variables may be unchanged; which devices this process can use is not.
    status: Status = "applied" if chosen.status == "unchanged" else chosen.status
    note = "the gate is lifted" + (", and the choice before it is in effect" if again else "")
    return replace(chosen, status=status, notes=(note, *chosen.notes))


def _choose_by_variables(magics: MagicState, spec: Spec, options: ChoiceOptions) -> Selection:
    wanted = wants(magics, options)
    with LiveDisplay(magics.shell, quiet=options.quiet) as live:

        def progress(waited: float, reason: str) -> None:
            live.text(f"waiting for GPUs: {reason} ({waited:.0f} s of {wanted.wait:.0f} s)")

        return apply.choose_devices(spec, wanted, progress)
