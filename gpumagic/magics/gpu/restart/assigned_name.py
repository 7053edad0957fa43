"""What the cell that runs does with the result of a restart, and whether anything follows it."""

from __future__ import annotations

import ast
import sys
from traceback import walk_stack
from typing import Any

from gpumagic.errors import RestartError
from gpumagic.system.shell import Shell


def read(shell: Shell) -> str | None:
    """Return the variable to which the cell assigns the magic's result; None if it does not.

    Raises:
        RestartError: the cell does something else with or after the magic, which would be lost.
    """
    kernel = getattr(shell, "kernel", None)
    if kernel is not None:
        source = kernel.get_parent("shell").get("content", {}).get("code", "")
    else:
        source = shell.history_manager.input_hist_raw[-1]
    try:
        last: Any = ast.parse(shell.transform_cell(source)).body[-1]
    except (SyntaxError, IndexError):  # top-level await in a way that only IPython compiles
        last = None
    asked = ast.unparse(last.value.func) if _is_call(last) else ""
    if asked == "get_ipython().run_cell_magic":
        name = ast.literal_eval(last.value.args[0])
        raise RestartError(
            f"%%{name} runs this cell, and would not see its end: restart in a cell without it"
        )
    stack = walk_stack(sys._getframe())
    lines = [line for frame, line in stack if frame.f_globals is shell.user_ns]
    if (
        len(lines) == 1
        and asked == "get_ipython().run_line_magic"
        and last.lineno <= lines[0] <= last.end_lineno
    ):
        if isinstance(last, ast.Expr):
            return None
        if isinstance(last, ast.Assign) and len(last.targets) == 1:
            if isinstance(last.targets[0], ast.Name):
                return last.targets[0].id
            raise RestartError(
                f"{ast.unparse(last.targets[0])} is not there after a restart: assign its result "
                "to a plain name"
            )
    raise RestartError(
        "what follows a restart in the same cell would not be run: make it the last line of its "
        "cell, not inside a block or a function"
    )


def _is_call(statement: Any) -> bool:
    return isinstance(getattr(statement, "value", None), ast.Call)
