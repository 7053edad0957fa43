"""Real ipyparallel clusters on loopback: a controller and engines, each a process of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest.mock import patch

from tests.support import forks, ports
from tests.support.waiting import PATIENCE, until

#: As many as a controller binds.
_PORTS = 24
#: An engine is registered at its second heartbeat; every 3 s would be long for tests.
_OPTIONS = (
    "--ip=127.0.0.1",
    "--HeartMonitor.period=300",
    "--HeartMonitor.max_heartmonitor_misses=500",
)
#: How long a machine may be busy with all of them.
_ENGINE_OPTIONS = ("--IPEngine.timeout=400", "--IPEngine.max_heartbeat_misses=1000")

_STATE = (
    "(dict(__import__('os').environ), 'torch' in __import__('sys').modules, "
    "sorted(n for n in get_ipython().user_ns if n[0] != '_'))"
)


class Cluster:
    """A controller and engines, which may differ in their environment; ended by `close`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.file = folder / "profile_default" / "security" / "ipcontroller-client.json"
        self._log = (folder / "log.txt").open("w")
        self.engines: list[subprocess.Popen[bytes]] = []
        self._controller: subprocess.Popen[bytes] | None = None
        self._client: Any = None
        self._state: Any = None
        self._environments: Sequence[Mapping[str, str]] = ()

    def start(self, environments: Sequence[Mapping[str, str]]) -> Cluster:
        """Start the controller, and an engine in each of the environments, which get ids in order.

        Returns when all are registered.
        """
        (self.folder / "profile_default").mkdir()
        own = ",".join(str(port) for port in ports.take(_PORTS))
        self._controller = self._run("controller", environments[0], *_OPTIONS, f"--ports={own}")
        self._until(self.files_are_complete, "the controller's connection files")
        self._environments = environments
        self._start_engines()
        return self

    def files_are_complete(self) -> bool:
        """Return whether the controller has written its files: they are there before, and empty."""
        try:
            for file in (self.file, self.file.with_name("ipcontroller-engine.json")):
                json.loads(file.read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError):
            return False
        return True

    def _start_engines(self) -> None:
        for engine, environment in enumerate(self._environments):
            self.engines.append(
                self._run("engine", environment, f"--IPEngine.id={engine}", *_ENGINE_OPTIONS)
            )
        wanted = [*range(len(self.engines))]
        self._until(lambda: self._knows(wanted), "the engines")

    def _knows(self, wanted: list[int]) -> bool:
        """Return whether the client knows these engines; connect anew where the controller does.

        A client that connects meanwhile never learns of those that register between the
        controller's answer and its subscription to news.
        """
        if self.client.ids == wanted:
            return True
        if sorted(each for each in self.client.queue_status() if isinstance(each, int)) == wanted:
            self._forget_client()
        return bool(self.client.ids == wanted)

    def _forget_client(self) -> None:
        """Have the next use connect anew."""
        self._client.close(linger=0)
        self._client = self._state = None

    def replace_engines(self) -> None:
        """End the engines, and start others with the same ids; the controller stays."""
        for engine in self.engines:
            _kill(engine)
        self._until(lambda: not self.client.ids, "the end of the engines")
        self._forget_client()
        self.engines.clear()
        self._start_engines()

    def _run(self, what: str, environment: Mapping[str, str], *options: str) -> Any:
        return forks.popen(
            [
                sys.executable,
                "-m",
                f"ipyparallel.{what}",
                "--profile-dir=profile_default",
                f"--work-dir={self.folder}",  # else that of the template
                *options,
            ],
            env={**environment, "IPYTHONDIR": str(self.folder)},
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
        )

    @property
    def client(self) -> Any:
        """A client of the test's own, apart from gpumagic's."""
        if self._client is None:
            from ipyparallel import Client

            # It would give %px to a shell that it finds.
            with patch("ipyparallel.client.client.get_ipython", lambda: None):
                self._client = Client(str(self.file))
        return self._client

    def _until(self, holds: Callable[[], bool], what: str) -> None:
        def describe() -> str:
            self._log.flush()
            return f"{what} did not come: {Path(self._log.name).read_text()[-3000:]}"

        until(holds, describe)

    def run(self, engine: int, code: str) -> None:
        """Run code on an engine; returns when it has ended, and raises what it raised."""
        # block=True would also wait for its output, whose end a new client may have missed.
        self.client[engine].execute(code, block=False).get(timeout=PATIENCE)

    def value(self, engine: int, expression: str) -> Any:
        """The value of an expression on an engine."""
        return self.client[engine].apply_sync(eval, expression)

    def used(self) -> list[int]:
        """The engines that have left the state in which they were when this was first asked."""
        # An engine that a test has left without an answer costs no more than a new cluster.
        left = self.client[:].apply_async(eval, _STATE).get(timeout=PATIENCE)
        if self._state is None:
            self._state = left
        return [i for i, state in enumerate(self._state) if state != left[i]]

    def kill(self, engine: int) -> None:
        self.engines[engine].kill()

    def end_controller(self) -> None:
        """End the controller, its schedulers included."""
        assert self._controller is not None
        with suppress(ProcessLookupError):
            os.killpg(self._controller.pid, signal.SIGKILL)
        self._controller.wait()

    def close(self) -> None:
        if self._client is not None:
            self._client.close(linger=0)
        for engine in self.engines:
            _kill(engine)
        if self._controller is not None:
            self.end_controller()
        self._log.close()


def _kill(engine: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(engine.pid, signal.SIGKILL)
    engine.wait()
