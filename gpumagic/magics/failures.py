"""Below the traceback of a cell that failed: what gpumagic knows of the reason."""

from __future__ import annotations

import sys
from typing import Any, cast

from gpumagic import one_line


def explain(shell: Any, error: BaseException) -> None:
    """Show what there is to say on ``error``. Never raises, and keeps nothing of it."""
    try:
        from gpumagic.memory.oom import find

        found = _out_of_memory(shell, error) if find(error) is not None else _known(error)
        if found is None:
            return
        from IPython.display import display

        cast(Any, display)(found._repr_mimebundle_(), raw=True)
    except Exception as ours:
        print(f"gpumagic: no explanation ({one_line.named(ours)})", file=sys.stderr)


def _known(error: BaseException) -> Any:
    from gpumagic.explain import explain

    return explain(error)


def _out_of_memory(shell: Any, error: BaseException) -> Any:
    if not shell._gpumagic.magics.explain_oom:
        return None
    from gpumagic.memory.oom import explain

    return explain(error, shell)
