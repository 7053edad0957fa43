"""``%gpu SPEC --save``: a choice kept for the restarts of a kernel, and applied when it loads."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gpumagic.errors import GpuMagicError, SpecError
from gpumagic.selection import saved_choice
from gpumagic.system.text import plural

if TYPE_CHECKING:
    from gpumagic.results import Selection


def connection_file(shell: Any) -> str | None:
    """The connection file of the shell's kernel; None if it is not a kernel's."""
    app = getattr(getattr(shell, "kernel", None), "parent", None)
    path: str | None = getattr(app, "abs_connection_file", None)
    return path


def check(shell: Any) -> str:
    """The connection file.

    Raises:
        SpecError: there is none, so there is nothing to keep a choice for.
    """
    path = connection_file(shell)
    if not path:
        raise SpecError("--save is for Jupyter kernels, whose front end restarts them")
    return path


def keep(shell: Any, chosen: Selection) -> Selection:
    """Keep a choice that has been made, or, for ``reset``, forget the one that was kept."""
    path = check(shell)
    if chosen.requested == "reset":
        saved_choice.forget(path)
        note = "No choice is saved for this kernel any more."
    else:
        saved_choice.save(path, chosen.requested, chosen.environment)
        note = (
            "Saved: applied again when gpumagic loads after a restart (%gpu reset --save ends it)."
        )
    return replace(chosen, notes=(*chosen.notes, note))


def kept(shell: Any) -> Any:
    """What is kept now, for `put_back`."""
    return saved_choice.load(check(shell))


def put_back(shell: Any, before: Any) -> None:
    """Undo `keep`."""
    if before is None:
        saved_choice.forget(check(shell))
    else:
        saved_choice.save(check(shell), *before)


def apply(shell: Any) -> None:
    """Apply the choice that was kept for this kernel, if there is one. For when gpumagic loads."""
    path = connection_file(shell)
    found = saved_choice.load(path) if path else None
    if found is None:
        return
    from gpumagic.selection import apply as selection
    from gpumagic.selection import environment

    spec, variables = found
    before = environment.now()
    if all(before.get(name) == value for name, value in variables.items()):
        return
    try:
        chosen = selection.apply(spec, variables)
    except GpuMagicError as error:
        from gpumagic.system import text

        print(f"%gpu {spec} --save: not applied: {text.reason(error)}")
        return
    if chosen.status == "too-late":
        environment.restore(before)
        print(f"%gpu {spec} --save: not applied. {chosen.message}")
    else:
        number = len(chosen.devices)
        sees = "no GPU" if not number else plural(number, "GPU")
        print(f"%gpu {spec} --save: applied, this kernel sees {sees}.")
