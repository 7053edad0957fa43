"""Set ``CUDA_LAUNCH_BLOCKING=1`` for the process that a restart starts, until the next restart.

The host then waits for every kernel, so that a kernel's error is raised at the line that launched
it. The driver reads the variable when it is initialised.
"""

from __future__ import annotations

from gpumagic.cuda.process_state import STATE, WrittenVariable

VARIABLE = "CUDA_LAUNCH_BLOCKING"
NOTE = (
    f"{VARIABLE}=1: the host waits for every kernel, which is slow, and a traceback names the line "
    "of a kernel that fails. %gpu reset --restart ends this."
)


def is_temporary() -> bool:
    """Return whether a restart has set the variable for this process."""
    return STATE.launch_blocking is not None


def write(variables: dict[str, str], *, blocking: bool) -> tuple[str | None] | None:
    """Set the variable in a new process's environment, or restore it if a restart has set it.

    Return its earlier value for `start_from`, in a tuple; None without ``blocking``.
    """
    written = STATE.launch_blocking
    if written is not None and variables.get(VARIABLE) == written.after:
        variables.pop(VARIABLE)
        if written.before is not None:
            variables[VARIABLE] = written.before
    if not blocking:
        return None
    before = variables.get(VARIABLE)
    variables[VARIABLE] = "1"
    return (before,)


def start_from(written: tuple[str | None] | None) -> None:
    """Store the result of `write` in the process that this one has replaced."""
    STATE.launch_blocking = None if written is None else WrittenVariable(written[0], "1")
