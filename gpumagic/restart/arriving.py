"""The first acts of a process that has replaced another one: the request answered, others run."""

from __future__ import annotations

import traceback
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from gpumagic.restart import clients, numbering, requests

if TYPE_CHECKING:
    from gpumagic.restart import Report, Resumed


def resume(shell: Any, state: dict[str, Any], report: Report) -> None:
    """Go on where the old process stopped."""
    from gpumagic.restart import Resumed

    inherited = [state[name] for name in ("payload", "asked", "files", "lost", "variables")]
    resumed = Resumed(*inherited)
    kernel = getattr(shell, "kernel", None)
    if kernel is None:
        numbering.restore(shell, state["numbering"])
        with suppress(_ReportError):
            _tell(shell, resumed, report)
        numbering.finish(shell, state["numbering"])
        return
    from tornado.ioloop import IOLoop

    # The first thing that the kernel's loop does; nothing has been read from a socket before.
    IOLoop.current().add_callback(_begin, shell, state, resumed, report)


class _ReportError(Exception):
    """The report failed, and that has been shown."""


def _tell(shell: Any, resumed: Resumed, report: Report) -> None:
    """Report, and display the cell's value."""
    try:
        value = report(resumed)
        if value is not None:
            shell.displayhook(value)
    except Exception:
        shell.showtraceback()
        raise _ReportError from None
    finally:
        for file in resumed.files:
            file.close()


def _begin(shell: Any, state: dict[str, Any], resumed: Resumed, report: Report) -> None:
    """Hand the kernel the old request, to be answered instead of run, and those behind it."""
    kernel = shell.kernel
    run = kernel.shell_handlers["execute_request"]

    async def answer(stream: Any, identities: Any, parent: dict[str, Any]) -> None:
        kernel.shell_handlers["execute_request"] = run
        await _answer(shell, state, identities, parent, resumed, report)

    kernel.shell_handlers["execute_request"] = answer
    requests.put(kernel, [state["asking"], *state["waiting"]])


async def _answer(
    shell: Any,
    state: dict[str, Any],
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
    await clients.back(kernel.parent, state["channels"])
    reply: dict[str, Any] = {"status": "ok", "user_expressions": {}, "payload": []}
    try:
        numbering.restore(shell, state["numbering"])
        _tell(shell, resumed, report)
        reply["user_expressions"] = shell.user_expressions(content.get("user_expressions") or {})
    except Exception as error:
        if not isinstance(error, _ReportError):
            shell.showtraceback()
        reply.update(
            status="error",
            ename=type(error).__name__,
            evalue=str(error),
            traceback=traceback.format_exc().splitlines(),
        )
    numbering.finish(shell, state["numbering"], counted=counted)
    reply["execution_count"] = shell.execution_count - 1
    metadata = kernel.finish_metadata(parent, metadata, reply)
    message = kernel.session.msg("execute_reply", reply, parent=parent, metadata=metadata)
    sent = await clients.send(
        kernel.shell_stream, kernel.session.serialize(message, ident=identities)
    )
    if not sent:
        kernel.log.warning("gpumagic: the client that asked for the restart has not come back")
