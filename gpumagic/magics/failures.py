"""Explain below its traceback why a cell failed, where the cause is known."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from gpumagic.cells.hooks import CellHook


def hooks(shell: Any) -> Iterator[CellHook[Any]]:
    """Yield the hook that explains failures."""

    def after(_: Any, result: Any) -> None:
        if result.error_in_exec is not None:
            explain(shell, result.error_in_exec)

    def failed(error: Exception) -> None:
        from gpumagic.system import text

        print(f"gpumagic: errors are not explained any more ({text.named(error)})", file=sys.stderr)

    yield CellHook(after=after, failed=failed)


def explain(shell: Any, error: BaseException) -> None:
    """Show the explanation of ``error``, if there is one; raises nothing, keeps no reference."""
    from gpumagic.system import text

    try:
        from gpumagic.memory.oom import find

        found = _known(error) if find(error) is None else _out_of_memory(shell, error)
        if found is not None:
            from gpumagic.magics import output

            output.show(shell, found)
    except Exception as ours:
        print(f"gpumagic: no explanation ({text.named(ours)})", file=sys.stderr)


def _known(error: BaseException) -> Any:
    from gpumagic.doctor import explanation

    return explanation.explain(error)


def _out_of_memory(shell: Any, error: BaseException) -> Any:
    from gpumagic.magics.extension import of

    if not of(shell).magics.explain_oom:
        return None
    from gpumagic.memory.oom import explain

    return explain(error, shell)
