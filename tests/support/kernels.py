"""Real kernels, each in a process of its own."""

from __future__ import annotations

import ast
import os
import queue
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

from jupyter_client.manager import KernelManager
from jupyter_client.provisioning import KernelProvisionerFactory, LocalProvisioner

from tests.support import forks, ports
from tests.support.device import DEVICES, ROOT
from tests.support.waiting import PATIENCE

#: The module that starts ipykernel's kernels: ``python -m ipykernel_launcher -f FILE``.
LAUNCHER = "ipykernel_launcher"


class CellError(AssertionError):
    """A cell raised where the test expected it not to."""


@dataclass(frozen=True)
class Reply:
    """What a client of the kernel was sent for one request."""

    status: str
    execution_count: int | None
    outputs: list[dict[str, Any]] = field(default_factory=list)

    def _streams(self, name: str) -> str:
        return "".join(
            o["text"] for o in self.outputs if o["output_type"] == "stream" and o["name"] == name
        )

    def _mime(self, mime: str, *kinds: str) -> list[str]:
        return [
            o["data"][mime] for o in self.outputs if o["output_type"] in kinds and mime in o["data"]
        ]

    @property
    def stdout(self) -> str:
        return self._streams("stdout")

    @property
    def stderr(self) -> str:
        return self._streams("stderr")

    @property
    def text(self) -> str:
        """What was displayed, as text; without the cell's own value."""
        return "\n".join(self._mime("text/plain", "display_data"))

    @property
    def html(self) -> str:
        return "\n".join(self._mime("text/html", "display_data"))

    @property
    def value(self) -> str | None:
        """The cell's value as ``Out[n]`` shows it."""
        values = self._mime("text/plain", "execute_result")
        return values[-1] if values else None

    @property
    def error(self) -> dict[str, Any] | None:
        """``ename``, ``evalue`` and ``traceback`` of the cell's exception."""
        return next((o for o in self.outputs if o["output_type"] == "error"), None)

    @property
    def shown(self) -> str:
        """Everything that a user reads under the cell, in its order, as text."""
        parts = []
        for output in self.outputs:
            if output["output_type"] == "stream":
                parts.append(output["text"])
            elif output["output_type"] == "error":
                parts.append("\n".join(output["traceback"]) + "\n")
            else:
                parts.append(output["data"].get("text/plain", "") + "\n")
        return "".join(parts)


class Kernel:
    """A running ipykernel with one blocking client."""

    def __init__(
        self,
        environment: Mapping[str, str],
        cwd: Path,
        *arguments: str,
        fresh: bool = False,
        launcher: str = LAUNCHER,
    ) -> None:
        self.environment = environment
        self.manager = manage(KernelManager(kernel_name="python3"), launcher=launcher, fresh=fresh)
        self.manager.start_kernel(
            env=dict(environment), cwd=str(cwd), extra_arguments=list(arguments)
        )
        self.client = self.manager.blocking_client()
        self._early: dict[str, list[dict[str, Any]]] = {}
        self._said, self._asks = "", False
        try:
            self.client.start_channels()
            self.client.wait_for_ready(timeout=PATIENCE)
        except BaseException:
            self.close()
            raise

    def run(self, source: str, *, raising: bool = True) -> Reply:
        """Run a cell and return what it showed.

        Raises:
            CellError: the cell raised, and ``raising`` is true; with the traceback.
            TimeoutError: no reply, or no end of the output, within `PATIENCE`.
        """
        deadline = time.monotonic() + PATIENCE
        # ipykernel 6 aborts also what arrives just after a cell has failed: nothing ran, so again.
        while True:
            message = self.submit(source, stops=raising)
            if (reply := self.wait(message)).status != "aborted":
                break
            if time.monotonic() > deadline:
                raise TimeoutError("the kernel aborts every request")
            time.sleep(0.05)
        if raising and reply.status != "ok":
            raise CellError(f"{source}\n→ {reply.status}\n{reply.shown}")
        return reply

    def submit(self, source: str, *, stops: bool = True) -> str:
        """Send a cell and return the request's id at once.

        With ``stops`` an error in it aborts what is sent behind it, as in a notebook.
        """
        self._said = ""
        # With pytest -s somebody is there to answer.
        self._asks = "pytest" in sys.modules and sys.stdin.isatty()
        message: str = self.client.execute(source, allow_stdin=self._asks, stop_on_error=stops)
        return message

    def until(self, message: str, text: str) -> None:
        """Wait until the cell has shown ``text``; `wait` still returns all of its output."""
        deadline = time.monotonic() + PATIENCE
        early = self._early.setdefault(message, [])
        while not any(text in _text(output) for output in early):
            assert self._publish(message, deadline, early), f"the cell ended without {text!r}"

    def wait_idle(self, message: str) -> list[dict[str, Any]]:
        """Wait until a message that has no reply is handled; what the kernel published for it."""
        deadline, found = time.monotonic() + PATIENCE, []
        while True:
            content = self._next(self.client.get_iopub_msg, message, deadline)["content"]
            if content.get("execution_state") == "idle":
                return found
            found.append(content)

    def wait(self, message: str, *, timeout: float = PATIENCE) -> Reply:
        """Wait for the reply to ``message`` and for the end of its output."""
        deadline = time.monotonic() + timeout
        outputs = self._early.pop(message, [])
        while self._publish(message, deadline, outputs):
            pass
        reply = self._next(self.client.get_shell_msg, message, deadline)["content"]
        return Reply(reply["status"], reply.get("execution_count"), outputs)

    def _publish(self, message: str, deadline: float, outputs: list[dict[str, Any]]) -> bool:
        """Add what the kernel publishes next to ``outputs``; False when the cell has ended."""
        published = self._next(self.client.get_iopub_msg, message, deadline)
        kind, content = published["msg_type"], published["content"]
        if kind in ("stream", "error", "display_data", "execute_result"):
            outputs.append({"output_type": kind, **content})
            self._said += content.get("text", "")
        elif kind == "update_display_data":
            _update(outputs, content)
        return not (kind == "status" and content["execution_state"] == "idle")

    def _next(self, receive: Any, parent: str, deadline: float) -> dict[str, Any]:
        """The next message that belongs to ``parent``; those of others are dropped."""
        while True:
            try:
                message: dict[str, Any] = receive(
                    timeout=max(0.0, min(1.0, deadline - time.monotonic()))
                )
            except queue.Empty:
                self._answer()
                if not self.manager.is_alive():
                    raise RuntimeError("the kernel died") from None
                if time.monotonic() >= deadline:
                    raise TimeoutError("the kernel did not answer in time") from None
                continue
            if message["parent_header"].get("msg_id") == parent:
                return message

    def _answer(self) -> None:
        """Let the terminal answer where a `breakpoint` in the kernel asks it."""
        if self._asks:
            with suppress(queue.Empty):
                asked = self.client.get_stdin_msg(timeout=0)
                print(self._said, end="")
                self._said = ""
                self.client.input(input(asked["content"]["prompt"]))

    def value(self, expression: str) -> Any:
        """The value of an expression of plain data in the kernel."""
        shown = self.run(f"print(repr({expression}))").stdout
        return ast.literal_eval(shown.strip())

    def subshell(self) -> Callable[[str], str]:
        """Make a subshell, as ipykernel 7 has them; what sends a cell to it, as `submit` does."""
        control, session = self.client.control_channel, self.client.session
        control.send(session.msg("create_subshell_request"))
        subshell = control.get_msg(timeout=PATIENCE)["content"]["subshell_id"]

        def send(source: str) -> str:
            request = session.msg("execute_request", {"code": source, "silent": False})
            request["content"] |= {"store_history": True, "allow_stdin": False}
            request["header"]["subshell_id"] = subshell
            self.client.shell_channel.send(request)
            message: str = request["header"]["msg_id"]
            return message

        return send

    def interrupt(self) -> None:
        self.manager.interrupt_kernel()

    def close(self) -> None:
        end_client(self.client)
        if self.manager.has_kernel:
            self.manager.shutdown_kernel(now=True)
        self.manager.cleanup_resources()


def end_client(client: Any) -> None:
    """Disconnect a client, whose context jupyter_client 7 leaves to the garbage collector.

    That warns of it if it comes to the context first: in any test.
    """
    client.stop_channels()
    client.context.destroy(linger=0)


def _text(output: dict[str, Any]) -> str:
    return str(output.get("text") or output.get("data", {}).get("text/plain", ""))


def _update(outputs: list[dict[str, Any]], content: dict[str, Any]) -> None:
    """Replace what has this display id, as a front end does; an empty text is nothing to see."""
    shown = [each for each in outputs if each.get("transient") == content["transient"]]
    for output in shown:
        output["data"] = content["data"]
        if not content["data"].get("text/plain"):
            outputs.remove(output)


class ForkProvisioner(LocalProvisioner):
    """Forks kernels for a `KernelManager`, where a fork is the same as a fresh process."""

    async def launch_kernel(self, cmd: list[str], **kwargs: Any) -> Any:
        env, streams = kwargs.get("env"), {k: kwargs.get(k) for k in ("stdout", "stderr")}
        forked = None
        if env is not None and kwargs.keys() <= {"env", "cwd", "log", *streams}:
            cwd, streams["stdin"] = kwargs.get("cwd") or Path.cwd(), subprocess.DEVNULL
            forked = forks.fork(cmd, env=env, cwd=cwd, **streams)
        if forked is None:
            return await super().launch_kernel(cmd, **kwargs)
        self.process = forked
        self.pid = self.pgid = forked.pid
        return self.connection_info


def manage(manager: Any, *, launcher: str = LAUNCHER, fresh: bool = False) -> Any:
    """Have this `KernelManager` use ports of ours, and fork its kernels; returns it.

    ``launcher`` is the module that starts them.
    """
    command = manager.kernel_spec.argv
    command[command.index(LAUNCHER)] = launcher
    manager.cache_ports = False
    names = ("shell_port", "iopub_port", "stdin_port", "hb_port", "control_port")
    for name, port in zip(names, ports.take(len(names)), strict=True):
        setattr(manager, name, port)
    if not fresh:
        name, group = "forked", KernelProvisionerFactory.GROUP_NAME
        found = EntryPoint(name, f"{__name__}:{ForkProvisioner.__name__}", group)
        KernelProvisionerFactory.instance().provisioners[name] = found
        manager.kernel_spec.metadata["kernel_provisioner"] = {"provisioner_name": name}
    return manager


def python_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """``environment`` for a child that imports gpumagic from this checkout."""
    path = [str(ROOT), *filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))]
    return {**environment, "PYTHONPATH": os.pathsep.join(dict.fromkeys(path))}


def child_environment(
    scenario: Any = None, env: Mapping[str, str | None] | None = None
) -> dict[str, str]:
    """The environment of a new process, on a virtual GPU where this one is.

    ``scenario`` is a `tests.virtual_gpu.Scenario` (default: as many devices as this run has, but
    others, so that memory figures stay separate); a variable that ``env`` maps to None is left out.
    """
    from tests.virtual_gpu import Scenario, environment

    variables: dict[str, str | None] = dict(os.environ)
    if "VIRTUAL_GPU_STATE" in variables:
        variables = dict(environment(scenario or Scenario(devices=DEVICES)))
    variables.update(env or {})
    return python_environment({k: v for k, v in variables.items() if v is not None})


@contextmanager
def running_kernel(
    folder: Path,
    environment: Mapping[str, str] | None = None,
    *arguments: str,
    load: bool = True,
    **options: Any,
) -> Iterator[Kernel]:
    """A kernel in this folder, with gpumagic loaded, until the block ends; as `Kernel` has it."""
    kernel = Kernel(environment or child_environment(), folder, *arguments, **options)
    try:
        if load:
            kernel.run("%load_ext gpumagic")
        yield kernel
    finally:
        kernel.close()
