"""Explain below its traceback why a cell failed, where the cause is known."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from gpumagic.magics.extension import of
from gpumagic.system import text

if TYPE_CHECKING:
    from gpumagic.results.base import Result


def explain(shell: Any, error: BaseException) -> None:
    """Show the explanation of ``error``, if there is one; raises nothing, keeps no reference."""
    try:
        from gpumagic.doctor import explanation
        from gpumagic.memory import oom

        found: Result | None = None
        if oom.find(error) is None:
            found = explanation.explain(error)
        elif of(shell).magics.explain_oom:
            found = oom.explain(error, shell)
        if found is not None:
            from gpumagic.magics import output

            output.show(shell, found)
    except Exception as ours:
        print(f"gpumagic: no explanation ({text.named(ours)})", file=sys.stderr)
