"""The first acts of a process that has replaced another one: the request answered, others run."""

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

from gpumagic.restart import connections, execution_count, exit_functions, loader, shell_queue
from gpumagic.system import import_path


@dataclass(frozen=True)
class Resumed:
    """What a process knows of the one that it replaced."""

    #: Whatever the caller of `restart` wanted to be carried over.
    payload: dict[str, Any]
    #: ``time.time()`` when the restart was asked for.
    asked: float
    #: The files that `restart` was given, at their beginning; closed after the report.
    files: list[IO[bytes]]
    #: What was lost beside variables, a phrase each.
    lost: list[str]
    #: The names of the variables that there were.
    variables: list[str]

    @property
    def seconds(self) -> float:
        """How long the restart has taken until now."""
        return time.time() - self.asked


#: Tells what became of a restart, in the new process, by print and display. Returns the value of
#: the cell that asked, or None.
Report = Callable[[Resumed], Any]


def resume(shell: Any, state: Mapping[str, Any], report: Report) -> None:
    """Answer the request of the process that this one has replaced, then run those that waited.

    ``state`` is what that has left. ``report`` is called when the clients are back, or, in a
    terminal, at once; what it prints and displays are outputs of the cell that asked.
    """
    inherited = [state[name] for name in ("asked", "files", "lost", "variables")]
    resumed = Resumed(pickle.loads(state["payload"]), *inherited)
    kernel = getattr(shell, "kernel", None)
    if kernel is None:
        _reap_before_cells(shell, state["children"])
        with import_path.restricted_to(state["places"]):
            execution_count.restore(shell, state["numbering"])
            error = _told(shell, resumed, report)
        execution_count.finish(shell, state["numbering"])
        loader.answered(None)
        if error is None and loader.interrupts:
            print(f"\n{_INTERRUPTED}", file=sys.stderr)
        return
    if state["removes_connection_file"]:
        atexit.register(kernel.parent.cleanup_connection_file)

    async def answer(_: Any, __: Any, identities: Any, parent: dict[str, Any]) -> None:
        await _answer(shell, state, identities, parent, resumed, report)

    loader.answer_first(kernel, state, answer)


_INTERRUPTED = "KeyboardInterrupt: it came while the process was replaced, which is complete"


def _told(shell: Any, resumed: Resumed, report: Report) -> BaseException | None:
    """Report, and display the cell's value; what was raised, which is shown."""
    try:
        with loader.stopped_by_the_second_interrupt():
            value = report(resumed)
            if value is not None:
                shell.displayhook(value)
    except BaseException as error:  # also an interrupt, or the end of the process: it is answered
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
    """What the kernel does for a cell, except for running it."""
    kernel, content = shell.kernel, parent["content"]
    silent = content.get("silent", False)
    counted = content.get("store_history", not silent)
    metadata = kernel.init_metadata(parent)
    await connections.back(kernel.parent, state["channels"])
    reply: dict[str, Any] = {"status": "ok", "user_expressions": {}, "payload": []}
    try:
        with import_path.restricted_to(state["places"]):
            execution_count.restore(shell, state["numbering"])
            error = _told(shell, resumed, report)
        if error is None:
            expressions = content.get("user_expressions") or {}
            reply["user_expressions"] = shell.user_expressions(expressions)
    except BaseException as failure:
        shell.showtraceback()
        error = failure
    if error is None and loader.interrupts:
        # Whoever has interrupted wants the cells behind this one not to run.
        error = KeyboardInterrupt(_INTERRUPTED.partition(": ")[2])
        shell._showtraceback(KeyboardInterrupt, error, [_INTERRUPTED])
    if error is not None:
        reply.update(
            status="error",
            ename=type(error).__name__,
            evalue=str(error),
            traceback=traceback.format_exception(error),
        )
    execution_count.finish(shell, state["numbering"], counted=counted)
    reply["execution_count"] = shell.execution_count - 1
    metadata = kernel.finish_metadata(parent, metadata, reply)
    message = kernel.session.msg("execute_reply", reply, parent=parent, metadata=metadata)
    sent = await connections.send(
        kernel.shell_stream, kernel.session.serialize(message, ident=identities)
    )
    if not sent:
        kernel.log.warning("gpumagic: the client that asked for the restart has not come back")
    if error is not None and not silent and content.get("stop_on_error", True):
        kernel._abort_queues()
    shell_queue.keep(asyncio.ensure_future(_reap(state["children"])))


async def _reap(children: list[int]) -> None:
    """Reap the old process's helpers, which end as they notice that it has gone."""
    wait = 0.02
    while (children := exit_functions.reaped(children)) and wait < 60:
        await asyncio.sleep(wait)
        wait *= 2


def _reap_before_cells(shell: Any, children: list[int]) -> None:
    """`_reap` where no loop runs."""

    def look(*_: Any) -> None:
        children[:] = exit_functions.reaped(children)
        if not children:
            shell.events.unregister("pre_run_cell", look)

    shell.events.register("pre_run_cell", look)
