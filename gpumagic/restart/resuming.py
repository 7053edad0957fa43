"""Resume after ``execve``: answer the request that asked for the restart, and those behind it."""

from __future__ import annotations

import asyncio
import atexit
import pickle
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import IO, Any

from gpumagic.cells.hooks import CellHook, CellHooks
from gpumagic.restart import connections, execution_count, exit_functions, loader, shell_queue
from gpumagic.system import import_path


@dataclass(frozen=True)
class Resumed:
    """What the new process has received from the old one."""

    #: What the caller of `restart` has passed.
    payload: dict[str, Any]
    #: ``time.time()`` when the restart was requested.
    requested_at: float
    #: The files that `restart` was given, at position 0; closed after the report.
    files: list[IO[bytes]]
    #: What was lost apart from variables, a phrase each.
    lost: list[str]
    #: The names of the old process's variables.
    variables: list[str]

    @property
    def seconds(self) -> float:
        """The time of the restart so far."""
        return time.time() - self.requested_at


#: Reports a restart in the new process, by print and display. Returns the value of the cell that
#: asked for it, or None.
Report = Callable[[Resumed], Any]


def resume(shell: Any, hooks: CellHooks, state: Mapping[str, Any], report: Report) -> None:
    """Answer the request of the process that this one has replaced, then run those behind it.

    ``state`` is that of `state_file.take`. ``report`` is called when the clients are connected, or,
    in a terminal, at once; what it prints and displays are outputs of the cell that asked.
    """
    inherited = [state[name] for name in ("requested_at", "files", "lost", "variables")]
    resumed = Resumed(pickle.loads(state["payload"]), *inherited)
    kernel = getattr(shell, "kernel", None)
    if kernel is None:
        _reap_after_cells(hooks, state["children"])
        with import_path.restricted_to(state["module_folders"]):
            execution_count.restore(shell, state["counters"])
            error = _run_report(shell, resumed, report)
        execution_count.finish(shell, state["counters"])
        loader.restore_interrupts(None)
        if error is None and loader.interrupts:
            print(f"\n{_INTERRUPTED}", file=sys.stderr)
        return
    if state["removes_connection_file"]:
        atexit.register(kernel.parent.cleanup_connection_file)

    async def answer(_: Any, __: Any, identities: Any, parent: dict[str, Any]) -> None:
        await _answer(shell, state, identities, parent, resumed, report)

    loader.answer_first(kernel, state, answer)


_INTERRUPTED = "KeyboardInterrupt: it arrived during the restart, which is complete"


def _run_report(shell: Any, resumed: Resumed, report: Report) -> BaseException | None:
    """Report, and display the cell's value; return the exception that was raised and shown."""
    try:
        with loader.second_interrupt_raises():
            value = report(resumed)
            if value is not None:
                shell.displayhook(value)
    except BaseException as error:  # also an interrupt or `SystemExit`: the request is answered
        shell.showtraceback()
        return error
    finally:
        for file in resumed.files:
            file.close()
    return None


async def _answer(
    shell: Any,
    state: Mapping[str, Any],
    identities: Any,
    parent: dict[str, Any],
    resumed: Resumed,
    report: Report,
) -> None:
    """Do what the kernel does for a cell, except for running it."""
    kernel, content = shell.kernel, parent["content"]
    silent = content.get("silent", False)
    counted = content.get("store_history", not silent)
    metadata = kernel.init_metadata(parent)
    await connections.wait_until_reconnected(kernel.parent, state["channels"])
    reply: dict[str, Any] = {"status": "ok", "user_expressions": {}, "payload": []}
    try:
        with import_path.restricted_to(state["module_folders"]):
            execution_count.restore(shell, state["counters"])
            error = _run_report(shell, resumed, report)
        if error is None:
            expressions = content.get("user_expressions") or {}
            reply["user_expressions"] = shell.user_expressions(expressions)
    except BaseException as failure:
        shell.showtraceback()
        error = failure
    if error is None and loader.interrupts:
        # The user interrupted so that the cells behind this one do not run.
        error = KeyboardInterrupt(_INTERRUPTED.partition(": ")[2])
        shell._showtraceback(KeyboardInterrupt, error, [_INTERRUPTED])
    if error is not None:
        reply.update(
            status="error",
            ename=type(error).__name__,
            evalue=str(error),
            traceback=traceback.format_exception(error),
        )
    execution_count.finish(shell, state["counters"], counted=counted)
    reply["execution_count"] = shell.execution_count - 1
    metadata = kernel.finish_metadata(parent, metadata, reply)
    message = kernel.session.msg("execute_reply", reply, parent=parent, metadata=metadata)
    sent = await connections.send(
        kernel.shell_stream, kernel.session.serialize(message, ident=identities)
    )
    if not sent:
        kernel.log.warning("gpumagic: the client that asked for the restart is not connected again")
    if error is not None and not silent and content.get("stop_on_error", True):
        kernel._abort_queues()
    shell_queue.hold(asyncio.ensure_future(_reap(state["children"])))


async def _reap(children: list[int]) -> None:
    """Reap the old program's helper processes, which end by themselves."""
    wait = 0.02
    while (children := exit_functions.reap(children)) and wait < 60:
        await asyncio.sleep(wait)
        wait *= 2


def _reap_after_cells(hooks: CellHooks, children: list[int]) -> None:
    """Reap them after cells, where no event loop runs."""

    def reap(_: None, __: Any) -> None:
        children[:] = exit_functions.reap(children)
        if not children:
            hooks.remove(hook)

    hook = CellHook(reap)
    hooks.add(hook)
