"""Below the traceback of a cell that failed, the line that says why, where that is known."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from gpumagic.cells.hooks import CellHook
from gpumagic.magics.magic_state import MagicState

if TYPE_CHECKING:
    from IPython.core.interactiveshell import ExecutionResult

    from gpumagic.results.base import Result


class Explainer(CellHook[int]):
    """Explains what a cell has raised; also what IPython has drawn itself, as ``%run`` does."""

    def __init__(self, state: MagicState) -> None:
        self._state = state
        #: The identity of the exception that a cell within the running one has raised.
        self._explained: int | None = None

    def before(self, info: object, outer: object) -> int:
        """Return the identity of the exception that IPython has drawn last."""
        if outer is None:
            self._explained = None
        return id(getattr(sys, "last_value", None))

    def after(self, begun: int | None, result: ExecutionResult | None) -> None:
        drawn: BaseException | None = getattr(sys, "last_value", None)
        if begun is None or id(drawn) == begun:
            drawn = None
        error = None if result is None else result.error_in_exec or drawn
        if error is not None and id(error) != self._explained:
            explain(self._state, error)
            self._explained = id(error)


def explain(state: MagicState, error: BaseException) -> None:
    """Show below its traceback why a cell failed, where that is known; keeps no reference."""
    try:
        from gpumagic.doctor import failed_cell
        from gpumagic.magics import delivery
        from gpumagic.memory import oom

        found: Result | None = None
        if oom.find(error) is None:
            found = failed_cell.explain(error)
        elif state.explain_oom:
            found = oom.explain(error, state.shell)
        if found is not None:
            delivery.show(state.shell, found)
    except Exception as ours:
        from gpumagic.system import text
        from gpumagic.system.output import complain

        complain(f"gpumagic: no explanation ({text.named(ours)})")
