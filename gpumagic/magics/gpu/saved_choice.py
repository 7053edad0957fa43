"""``%gpu SPEC --save``: save a choice for restarts of this kernel, and apply it on loading."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gpumagic.errors import GpuMagicError, SpecError
from gpumagic.selection import saved_choice
from gpumagic.system.text import plural

if TYPE_CHECKING:
    from gpumagic.results import Selection
    from gpumagic.selection.spec import Spec


def connection_file(shell: Any) -> str | None:
    """Return the connection file of the shell's kernel; None if it is not a kernel's."""
    app = getattr(getattr(shell, "kernel", None), "parent", None)
    path: str | None = getattr(app, "abs_connection_file", None)
    return path


def _require_connection_file(shell: Any) -> str:
    """Return the connection file of the shell's kernel.

    Raises:
        SpecError: there is none, so the choice cannot be saved.
    """
    path = connection_file(shell)
    if not path:
        raise SpecError("--save is for Jupyter kernels, whose front end restarts them")
    return path


def save(shell: Any, spec: Spec, chosen: Selection) -> Selection:
    """Save a choice that was made, or, for ``reset``, remove the saved one; add a note on that."""
    path = _require_connection_file(shell)
    if spec.kind == "reset":
        saved_choice.forget(path)
        note = "No choice is saved for this kernel any more."
    else:
        saved_choice.save(path, chosen.requested, chosen.environment)
        note = (
            "Saved: applied again when gpumagic loads after a restart (%gpu reset --save ends it)."
        )
    return replace(chosen, notes=(*chosen.notes, note))


def saved(shell: Any) -> tuple[str, saved_choice.Variables] | None:
    """Return the saved choice, for `put_back`; None if there is none.

    Raises:
        SpecError: the shell is not a kernel's.
    """
    return saved_choice.load(_require_connection_file(shell))


def put_back(shell: Any, before: tuple[str, saved_choice.Variables] | None) -> None:
    """Undo `save`; ``before`` is what `saved` returned before it."""
    path = _require_connection_file(shell)
    if before is None:
        saved_choice.forget(path)
    else:
        saved_choice.save(path, *before)


def apply(shell: Any, *, claim: bool = True) -> None:
    """Apply the choice that is saved for this kernel, if there is one; print the outcome."""
    path = connection_file(shell)
    found = saved_choice.load(path) if path else None
    if found is None:
        return
    from gpumagic.cuda.process_state import STATE
    from gpumagic.selection import environment
    from gpumagic.selection.apply import apply_saved
    from gpumagic.selection.spec import parse
    from gpumagic.system import text

    spec, variables = found
    now = environment.now()
    if all(now.get(name) == value for name, value in variables.items()):
        return
    before = STATE.snapshot()
    try:
        chosen = apply_saved(parse(spec), variables, claim=claim)
    except GpuMagicError as error:
        print(f"%gpu {spec} --save: not applied: {text.reason(error)}")
        return
    if chosen.status == "too-late":
        STATE.restore(before)
        print(f"%gpu {spec} --save: not applied. {chosen.message}")
    else:
        number = len(chosen.devices)
        sees = "no GPU" if not number else plural(number, "GPU")
        print(f"%gpu {spec} --save: applied, this kernel sees {sees}.")
