"""Report below a failed cell that it destroyed the CUDA context, what is lost, and what helps."""

from __future__ import annotations

from typing import Any

from gpumagic.cuda import failure
from gpumagic.errors import GpuMagicError, RestartError
from gpumagic.results import DeadContext

#: Seconds of CPU time to find the variables that are lost.
_WALK = 0.5

_RESTART = (
    "CUDA works again after %gpu reset --restart --keep all, with the variables on the host; "
    "with --blocking the traceback of the next failure names its line"
)
_BY_HAND = (
    "CUDA works again when the kernel is restarted; with CUDA_LAUNCH_BLOCKING=1 in its environment "
    "the traceback of the next failure names its line"
)


def explain(shell: Any, text: str) -> DeadContext | None:
    """Return the report, if a failed cell's exception is an error that destroyed the context."""
    if not failure.is_cuda_error(text):
        return None
    cause = failure.check_context()
    if cause is None:
        return None
    try:
        names, complete = _on_gpu(shell)
    except GpuMagicError:  # an allocator without counters
        return DeadContext(cause, _remedy(shell))
    return DeadContext(cause, _remedy(shell), names, complete)


def _remedy(shell: Any) -> str:
    from gpumagic.magics.gpu import restarting

    try:
        restarting.check(shell, force=True)
    except RestartError:
        return _BY_HAND
    return _RESTART


def _on_gpu(shell: Any) -> tuple[tuple[str, ...], bool]:
    """Return the user's variables with memory on a GPU, and whether all were visited."""
    from gpumagic.memory.attribution import Survey
    from gpumagic.restart.shutdown import variables

    survey, users = Survey.make(shell=shell, seconds=_WALK), variables(shell)
    found = survey.holding_any(lambda root: not root.by_notebook and root.name in users)
    held = {root.name for root in found}
    return tuple(name for name in users if name in held), not survey.walked.incomplete
