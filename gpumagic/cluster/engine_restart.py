"""An engine restarted in place: the same process, the same engine to everybody, a fresh Python.

The old image hands on who it is and the requests that it has not answered, the one that asked for
the restart among them, which the new image then answers as if it had just arrived. The controller
sees a few heartbeats less; the engine keeps its id, since it never registers again.
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
from gpumagic.selection import environment as choice
from gpumagic.system import child_process
from gpumagic.system.paths import working_folder

#: Whether this process image follows another one, and has not yet answered for it.
_follows = False

#: Not by ``-m``, with which Python imports from the folder in which it starts.
_COMMAND = (
    "-c",
    f"{child_process.REMOVE_WORKING_FOLDER}; from gpumagic.cluster import engine_restart; "
    "engine_restart.main()",
)


def replace(shell: Any, *, force: bool = False) -> NoReturn:
    """Replace this engine by a fresh one under the environment as it stands.

    Raises:
        RestartError: that is not possible, or would lose threads or child processes and ``force``
            is not given; the engine is as it was.
    """
    app = _check(shell, force)
    kernel = shell.kernel
    nanny = getattr(app, "nanny_pipe", None)
    state = {
        "payload": {"started_with": choice.started_with()},
        "files": [],
        "id": app.id,
        "ident": app.ident,
        "period": max(app.hb_check_period - 500, 500),
        "curve": (app.curve_publickey, app.curve_secretkey),
        "current_request": pending_requests.current_request(kernel),
        "folder": working_folder(),
    }
    environment = dict(os.environ)
    with state_file.create() as file, shutdown.original_streams():
        if force:
            execve.terminate(_children(app))
        shutdown.flush_files()
        pickle.dump(state, file)
        environment[state_file.VARIABLE] = state_file.address(file)
        if nanny is not None:  # it would report the end of this engine when its pipe closes
            nanny.kill()
            nanny.wait()
        waiting = pending_requests.PendingRequests(kernel)
        pickle.dump(waiting.take(), file)
        file.flush()
        options, _ = command_line.split(sys.orig_argv[1:])
        command = [sys.executable, *options, *_COMMAND, *app.argv]
        try:
            execve.replace(command, environment, _first_folder(app), defer_interrupts=False)
        except (OSError, TypeError, ValueError) as error:
            waiting.put_back()
            raise RestartError(f"the system refuses to start it again: {error}") from None
    raise AssertionError("unreachable")


def _first_folder(app: Any) -> str:
    """The folder in which the engine was started, where its options mean what they meant.

    Not the present one: the user's code may have changed to any, and what lies there is not to be
    imported. Taken from the default of ``work_dir``, which that option, if given, differs from.
    """
    started = str(app.traits()["work_dir"].default_value)
    return started if Path(started).is_dir() else sys.prefix


def just_restarted() -> bool:
    """Whether the request that is being answered is the one that asked for the restart."""
    global _follows
    was, _follows = _follows, False
    return was


def _check(shell: Any, force: bool) -> Any:
    """The engine's application.

    Raises:
        RestartError: it cannot be replaced.
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
    """The child processes, without the one that ipyparallel has beside each engine."""
    nanny = getattr(getattr(app, "nanny_pipe", None), "pid", None)
    return {pid: name for pid, name in execve.children().items() if pid != nanny}


def main() -> None:
    """Be the engine that was handed on."""
    state = state_file.take()
    if state is None:
        sys.exit("gpumagic: no engine was handed on to this process")
    global _follows
    _follows = True
    choice.start_from(state["payload"]["started_with"])
    _app_class(state).launch_instance(argv=sys.argv[1:])


def _app_class(state: dict[str, Any]) -> Any:
    from ipyparallel.engine.app import IPEngine

    class Successor(IPEngine):  # type: ignore[misc]
        """An engine that is known already."""

        name = "ipengine"

        async def register(self) -> None:
            """Take the place of the old engine instead."""
            self.ident = state["ident"]
            self.curve_publickey, self.curve_secretkey = state["curve"]
            connect, maybe_tunnel = self.init_connector()
            self.registrar = self.context.socket(zmq.DEALER)  # to sign off
            self.registrar.IDENTITY = self.bident
            connect(self.registrar, self.registration_url)
            content = {"status": "ok", "id": state["id"], "hb_period": state["period"]}
            message = self.session.serialize(self.session.msg("registration_reply", content))
            links = Links()

            def watched(socket: Any, url: str, **options: Any) -> Any:
                links.watch(socket)
                return connect(socket, url, **options)

            await self.complete_registration(message, watched, maybe_tunnel)
            self.loop.add_callback(_go_on, self.kernel, links, state)

    return Successor


class Links:
    """Connections that are being made: what is sent before their handshake is lost."""

    def __init__(self) -> None:
        self._monitors: dict[int, Any] = {}
        self._until_connected: dict[int, int] = {}

    def watch(self, socket: Any) -> None:
        """``socket`` is about to connect once (more)."""
        if id(socket) not in self._monitors:
            monitor = socket.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED)
            self._monitors[id(socket)] = (monitor, socket)
        self._until_connected[id(socket)] = self._until_connected.get(id(socket), 0) + 1

    async def made(self, patience: float = 10.0) -> None:
        """Return when all of them are made, or after ``patience`` seconds."""
        deadline = time.monotonic() + patience
        while any(self._until_connected.values()) and time.monotonic() < deadline:
            for key, (monitor, _) in self._monitors.items():
                while monitor.poll(0):
                    monitor.recv_multipart(zmq.NOBLOCK)
                    self._until_connected[key] -= 1
            await asyncio.sleep(0.005)
        for _, socket in self._monitors.values():
            socket.disable_monitor()
        # The last step, from the handshake to the subscription, cannot be seen from here.
        await asyncio.sleep(0.05)


async def _go_on(kernel: Any, links: Links, state: dict[str, Any]) -> None:
    """Answer what the old engine has not answered."""
    await links.made()
    if state["folder"] is not None:
        _go_back_later(kernel, state["folder"])
    shell_queue.put(kernel, [state["current_request"], *state["pending_requests"]])


def _go_back_later(kernel: Any, folder: str) -> None:
    """Change to the folder in which the old image worked, when the first request is answered.

    The last step: until then nothing that is needed is to be imported from there.
    """
    before = kernel.post_handler_hook

    def answered() -> None:
        kernel.post_handler_hook = before
        with contextlib.suppress(OSError):  # it is gone
            os.chdir(folder)
        before()

    kernel.post_handler_hook = answered
