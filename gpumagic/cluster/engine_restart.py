"""Restart an engine in place: the same process and engine id, a fresh Python.

The old process image passes on its identity and the requests that it has not answered, also the one
that asked for the restart, which the new image answers as if it had just arrived. The controller
misses a few heartbeats; the engine does not register again, and so keeps its id.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import pickle
import sys
import time
from pathlib import Path
from typing import Any, NoReturn

import zmq

from gpumagic.errors import RestartError
from gpumagic.restart import (
    command_line,
    execve,
    losses,
    pending_requests,
    shell_queue,
    shutdown,
    state_file,
)
from gpumagic.selection import environment
from gpumagic.system import child_process
from gpumagic.system.paths import working_folder

#: Whether this process image replaced another one, and has not answered its request yet.
_restarted = False

#: Not ``-m``: Python would import from the directory in which it starts.
_COMMAND = (
    "-c",
    f"{child_process.REMOVE_WORKING_FOLDER}; from gpumagic.cluster import engine_restart; "
    "engine_restart.main()",
)


def replace(shell: Any, *, force: bool = False) -> NoReturn:
    """Replace this engine by a fresh one under the current environment.

    Raises:
        RestartError: that is not possible, or would lose threads or child processes and ``force``
            is not given; the engine is unchanged.
    """
    app = _check(shell, force)
    kernel = shell.kernel
    nanny = getattr(app, "nanny_pipe", None)
    state = {
        "payload": {"started_with": environment.started_with()},
        "files": [],
        "id": app.id,
        "ident": app.ident,
        "period": max(app.hb_check_period - 500, 500),
        "curve": (app.curve_publickey, app.curve_secretkey),
        "current_request": pending_requests.current_request(kernel),
        "folder": working_folder(),
    }
    variables = dict(os.environ)
    with state_file.create() as file, shutdown.original_streams():
        if force:
            execve.terminate(_children(app))
        shutdown.flush_files()
        pickle.dump(state, file)
        variables[state_file.VARIABLE] = state_file.address(file)
        if nanny is not None:  # it would report the end of this engine when its pipe closes
            nanny.kill()
            nanny.wait()
        waiting = pending_requests.PendingRequests(kernel)
        pickle.dump(waiting.take(), file)
        file.flush()
        options, _ = command_line.split(sys.orig_argv[1:])
        command = [sys.executable, *options, *_COMMAND, *app.argv]
        try:
            execve.replace(command, variables, _first_folder(app), defer_interrupts=False)
        except (OSError, TypeError, ValueError) as error:
            waiting.put_back()
            raise RestartError(f"the system refuses to start it again: {error}") from None
    raise AssertionError("unreachable")


def _first_folder(app: Any) -> str:
    """Return the directory in which the engine was started, to which its options are relative.

    Not the current one: the user's code may have changed to any, and nothing is to be imported from
    there. It is the default of ``work_dir``; that option, if given, has another value.
    """
    started = str(app.traits()["work_dir"].default_value)
    return started if Path(started).is_dir() else sys.prefix


def just_restarted() -> bool:
    """Return whether the current request is the one that asked for the restart."""
    global _restarted
    was, _restarted = _restarted, False
    return was


def _check(shell: Any, force: bool) -> Any:
    """Return the engine's application, if it can be replaced.

    Raises:
        RestartError: it cannot be.
    """
    app: Any = getattr(getattr(shell, "kernel", None), "parent", None)
    command_line.check_interpreter()
    if not hasattr(app, "registration_url") or not hasattr(app, "hb_check_period"):
        raise RestartError("this is no engine of ipyparallel's: restart it by hand")
    if app.use_mpi or "mpi4py" in sys.modules:
        raise RestartError("an engine under MPI cannot be restarted alone: restart the cluster")
    if not force:
        losses.check(shutdown.variables(shell), _children(app))
    return app


def _children(app: Any) -> dict[int, str]:
    """Return the child processes, without ipyparallel's nanny of this engine."""
    nanny = getattr(getattr(app, "nanny_pipe", None), "pid", None)
    return {pid: name for pid, name in execve.children().items() if pid != nanny}


def main() -> None:
    """Run the engine whose state was passed on."""
    state = state_file.take()
    if state is None:
        sys.exit("gpumagic: this process was given no state of an engine")
    global _restarted
    _restarted = True
    environment.start_from(state["payload"]["started_with"])
    _app_class(state).launch_instance(argv=sys.argv[1:])


def _app_class(state: dict[str, Any]) -> Any:
    from ipyparallel.engine.app import IPEngine

    class RestartedEngine(IPEngine):  # type: ignore[misc]
        """An engine that is registered already."""

        name = "ipengine"

        async def register(self) -> None:
            """Continue the registration of the old process image."""
            self.ident = state["ident"]
            self.curve_publickey, self.curve_secretkey = state["curve"]
            connect, maybe_tunnel = self.init_connector()
            self.registrar = self.context.socket(zmq.DEALER)  # to unregister at the end
            self.registrar.IDENTITY = self.bident
            connect(self.registrar, self.registration_url)
            content = {"status": "ok", "id": state["id"], "hb_period": state["period"]}
            message = self.session.serialize(self.session.msg("registration_reply", content))
            handshakes = Handshakes()

            def watched(socket: Any, url: str, **options: Any) -> Any:
                handshakes.expect(socket)
                return connect(socket, url, **options)

            await self.complete_registration(message, watched, maybe_tunnel)
            self.loop.add_callback(_resume, self.kernel, handshakes, state)

    return RestartedEngine


class Handshakes:
    """Connections whose handshake is not complete: what is sent before is lost."""

    def __init__(self) -> None:
        self._monitors: dict[int, Any] = {}
        self._missing: dict[int, int] = {}

    def expect(self, socket: Any) -> None:
        """Expect one more handshake of ``socket``, which is about to connect."""
        if id(socket) not in self._monitors:
            monitor = socket.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED)
            self._monitors[id(socket)] = (monitor, socket)
        self._missing[id(socket)] = self._missing.get(id(socket), 0) + 1

    async def complete(self, timeout: float = 10.0) -> None:
        """Return when all handshakes are complete, or after ``timeout`` seconds."""
        deadline = time.monotonic() + timeout
        while any(self._missing.values()) and time.monotonic() < deadline:
            for key, (monitor, _) in self._monitors.items():
                while monitor.poll(0):
                    monitor.recv_multipart(zmq.NOBLOCK)
                    self._missing[key] -= 1
            await asyncio.sleep(0.005)
        for _, socket in self._monitors.values():
            socket.disable_monitor()
        # The last step, from the handshake to the subscription, cannot be seen from here.
        await asyncio.sleep(0.05)


async def _resume(kernel: Any, handshakes: Handshakes, state: dict[str, Any]) -> None:
    """Answer the requests that the old process image has not answered."""
    await handshakes.complete()
    if state["folder"] is not None:
        _change_directory_later(kernel, state["folder"])
    shell_queue.put(kernel, [state["current_request"], *state["pending_requests"]])


def _change_directory_later(kernel: Any, folder: str) -> None:
    """Change to the old process image's directory when the first request is answered.

    This comes last, so that nothing is imported from there before.
    """
    before = kernel.post_handler_hook

    def answered() -> None:
        kernel.post_handler_hook = before
        with contextlib.suppress(OSError):  # it is gone
            os.chdir(folder)
        before()

    kernel.post_handler_hook = answered
