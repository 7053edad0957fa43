"""The prompt number, inputs and history session of a shell, which continue after a restart."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Any

from gpumagic.system.paths import working_folder


def capture(shell: Any) -> dict[str, Any]:
    """Return the state of ``shell`` during the cell that asks for a restart, as plain data."""
    history = shell.history_manager
    history.writeout_cache()
    return {
        "execution_count": shell.execution_count,
        # IPython 9.10 counts a cell before it runs it, older ones afterwards.
        "next": shell.displayhook.prompt_count + 1,
        "parsed": list(history.input_hist_parsed),
        "raw": list(history.input_hist_raw),
        "recent": [getattr(history, name) for name in _RECENT],
        "session": history.session_number if history.enabled else None,
        "folders": list(history.dir_hist),
        "folder": working_folder(),
    }


_RECENT = ("_i00", "_i", "_ii", "_iii")


def restore(shell: Any, state: dict[str, Any]) -> None:
    """Continue within the cell in which `capture` was called; `finish` ends it."""
    history = shell.history_manager
    shell.execution_count = state["execution_count"]
    history.input_hist_parsed[:] = state["parsed"]
    history.input_hist_raw[:] = state["raw"]
    history.dir_hist[:] = state["folders"]
    inputs = {f"_i{n}": text for n, text in enumerate(state["raw"]) if n}
    for name, text in zip(_RECENT, state["recent"], strict=True):
        setattr(history, name, text)
    latest = dict(zip(_RECENT[1:], state["recent"][1:], strict=True))
    shell.push({**inputs, **latest}, interactive=False)
    _continue_session(history, state["session"])
    if state["folder"] is not None:
        with suppress(OSError):  # removed meanwhile
            os.chdir(state["folder"])


def finish(shell: Any, state: dict[str, Any], *, counted: bool = True) -> None:
    """End the cell; ``counted`` if it has a prompt number."""
    shell.execution_count = state["next"] if counted else state["execution_count"]


def _continue_session(history: Any, session: int | None) -> None:
    """Continue the old session of the history database, and delete the new one."""
    if session is None or not history.enabled or history.session_number == session:
        return
    begun, history.session_number = history.session_number, session
    with history.db:
        history.db.execute("DELETE FROM sessions WHERE session == ?", (begun,))
