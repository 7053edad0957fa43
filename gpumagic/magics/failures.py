"""Explain below its traceback why a cell failed, where the cause is known."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Any

from IPython.core.error import UsageError

from gpumagic.magics.commands import MAGICS
from gpumagic.magics.extension import of
from gpumagic.system import text

if TYPE_CHECKING:
    from gpumagic.results.base import Result

_NOT_FOUND = re.compile(r"(?:Line|Cell) magic (?:function )?`(%%?)(\w+)` not found")


def explain(shell: Any, error: BaseException) -> None:
    """Show the explanation of ``error``, if there is one; raises nothing, keeps no reference."""
    try:
        magic = near_magic(error)
        if magic is not None:
            print(f"gpumagic: did you mean {magic}?", file=sys.stderr)
            return
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


def near_magic(error: BaseException) -> str | None:
    """Return the magic of ours that was meant, if IPython has found none of a similar name."""
    missing = _NOT_FOUND.search(str(error)) if type(error) is UsageError else None
    if missing is None:
        return None
    import difflib

    near = difflib.get_close_matches(missing[2], MAGICS, n=1, cutoff=0.7)
    return f"{missing[1]}{near[0]}" if near else None
