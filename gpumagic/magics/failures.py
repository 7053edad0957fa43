"""Explain below its traceback why a cell failed, where the cause is known."""

from __future__ import annotations

import sys
from typing import Any

from gpumagic.magics import output
from gpumagic.magics.extension import of
from gpumagic.system import text


def counters() -> Any:
    """Return the allocator's counters at a cell's start, for `explain`; None if unreadable."""
    try:
        from gpumagic.memory.start_counters import read

        return read()
    except Exception:  # the cell raises it too, if it allocates
        return None


def explain(shell: Any, error: BaseException, begun: Any = None) -> None:
    """Show the explanation of ``error``, if there is one. Never raises; holds no reference to it.

    ``begun`` are the `counters` at the cell's start, if they were read.
    """
    try:
        from gpumagic.memory.oom import find

        none = find(error) is None
        found = _known(error) if none else _out_of_memory(shell, error, begun)
        if found is None:
            return
        output.show(shell, found)
    except Exception as ours:
        print(f"gpumagic: no explanation ({text.named(ours)})", file=sys.stderr)


def _known(error: BaseException) -> Any:
    from gpumagic.doctor import explanation

    return explanation.explain(error)


def _out_of_memory(shell: Any, error: BaseException, begun: Any) -> Any:
    if not of(shell).magics.explain_oom:
        return None
    from gpumagic.memory.oom import elsewhere, explain

    return elsewhere(error, begun) or explain(error, shell, begun)
