"""Notebooks of real Jupyter servers: names, states, and one that its server shuts down."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from jupyter_client.blocking.client import BlockingKernelClient

from tests.frontends import lab
from tests.support import forks
from tests.support.kernels import PATIENCE, Kernel

pytestmark = pytest.mark.skipif(
    find_spec("jupyter_server") is None,
    reason="jupyter_server is not installed (pip install --group frontends)",
)
MIB = 2**20
_XSRF = "0" * 32


@dataclass
class Server:
    """A running Jupyter server, and what a front end asks it."""

    address: str
    token: str
    runtime: Path

    def ask(self, method: str, path: str, content: Any = None) -> Any:
        headers = {"Cookie": f"_xsrf={_XSRF}", "X-XSRFToken": _XSRF}
        if self.token:
            headers["Authorization"] = f"token {self.token}"
        data = None if content is None else json.dumps(content).encode()
        url = f"{self.address}api/{path}"
        request = urllib.request.Request(url, data, headers, method=method)
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            return json.loads(answer.read() or b"null")

    def open(self, notebook: str) -> Attached:
        """Open a notebook, as a front end does, and connect to its kernel."""
        kernel = {"kernel": {"name": "python3"}, "type": "notebook"}
        session = self.ask("POST", "sessions", {"path": notebook, "name": notebook, **kernel})
        return Attached(self.runtime / f"kernel-{session['kernel']['id']}.json")


class Attached(Kernel):
    """A kernel that a server has started."""

    def __init__(self, file: Path) -> None:
        self.manager = SimpleNamespace(is_alive=lambda: True)
        self.client = BlockingKernelClient(connection_file=str(file))
        self.client.load_connection_file()
        self._early = {}
        # A client without a manager takes a second without a heartbeat for the kernel's death.
        self.client.hb_channel.time_to_dead = PATIENCE
        self.client.start_channels()
        try:
            self.client.wait_for_ready(timeout=PATIENCE)
        except BaseException:
            self.close()
            raise

    def answered(self, source: str, answer: str) -> Any:
        """Run a cell that asks, and answer it."""
        message = self.client.execute(source, allow_stdin=True)
        question = self.client.get_stdin_msg(timeout=PATIENCE)["content"]["prompt"]
        self.client.input(answer)
        return question, self.wait(message)

    def close(self) -> None:
        self.client.stop_channels()


@contextmanager
def running(
    environment: Mapping[str, str], folder: Path, token: str, base_url: str
) -> Iterator[Server]:
    folder.mkdir()
    port = lab.free_port()
    command = [
        *(sys.executable, "-m", "jupyter_server", "--no-browser", "--allow-root"),
        *("--ip=127.0.0.1", f"--port={port}", "--ServerApp.port_retries=0"),
        *(f"--IdentityProvider.token={token}", f"--ServerApp.base_url={base_url}"),
        *(f"--ServerApp.root_dir={folder}", "--ServerApp.password="),
    ]
    with (folder / "server.log").open("w") as log:
        process = forks.popen(
            command,
            env=environment,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
        made = Server(
            f"http://127.0.0.1:{port}{base_url}", token, Path(environment["JUPYTER_RUNTIME_DIR"])
        )
        try:
            _wait(lambda: _answers(made), folder / "server.log")
            yield made
        finally:
            process.terminate()
            process.wait(300)


def _answers(server: Server) -> bool:
    try:
        return bool(server.ask("GET", "status"))
    except OSError:
        return False


def _wait(condition: Callable[[], Any], log: Path | None = None) -> Any:
    deadline = time.monotonic() + PATIENCE
    while not (found := condition()):
        assert time.monotonic() < deadline, "" if log is None else log.read_text()
        time.sleep(0.05)
    return found


def _contains(text: str, words: str) -> bool:
    """Whether a text has these words, wherever its lines end: folders' names are long."""
    return "".join(words.split()) in "".join(text.split())


def leftovers(runtime: Path) -> None:
    """Files of a server that was killed, and of one whose port another program has now."""
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        pass
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    for pid in (ended.pid, os.getpid()):
        file = runtime / f"jpserver-{pid}.json"
        fields = {"pid": pid, "port": port, "token": "secret", "base_url": "/"}
        file.write_text(json.dumps({**fields, "url": f"http://localhost:{port}/"}))
        file.chmod(0o600)


#: Memory of a GPU, as of a program that need not import torch.
ALLOCATE = """
import ctypes
lib, context, x = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p(), ctypes.c_void_p()
assert lib.cuInit(0) == 0
assert lib.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
assert lib.cuCtxSetCurrent(context) == 0
assert lib.cuMemAlloc_v2(ctypes.byref(x), ctypes.c_size_t(%d)) == 0
"""
LISTED = "[(n.name, n.path, n.folder, n.memory, n.idle, n.own) for n in listed]"


def test_two_notebooks_of_two_servers(
    child_environment: Callable[..., dict[str, str]], tmp_path: Path
) -> None:
    """One with a token behind a base URL, one with neither; files of others lie beside theirs."""
    environment = lab.environment_for(child_environment(), tmp_path)
    leftovers(Path(environment["JUPYTER_RUNTIME_DIR"]))
    with ExitStack() as ending:
        with_token, without = (
            ending.enter_context(running(environment, tmp_path / name, token, base))
            for name, token, base in (("ann", "s3cr3t", "/user/ann/"), ("plain", "", "/"))
        )
        train, own = with_token.open("train.ipynb"), without.open("eval.ipynb")
        ending.callback(train.close)
        ending.callback(own.close)
        train.run(ALLOCATE % (64 * MIB))
        own.run("%load_ext gpumagic")

        def listed() -> dict[str, tuple[Any, ...]]:
            own.run("listed = %gpu ps --mine -o -q")
            return {name: rest for name, *rest in own.value(LISTED)}  # type: ignore[misc]

        found = listed()
        assert found.keys() == {"train.ipynb", "eval.ipynb"}
        path, folder, memory, _, is_own = found["train.ipynb"]
        assert (path, folder, is_own) == ("train.ipynb", str(tmp_path / "ann"), False)
        assert memory > 64 * MIB
        assert found["eval.ipynb"][1] == str(tmp_path / "plain")
        assert found["eval.ipynb"][-1] is True
        # Busy while a cell runs, idle after it.
        end = tmp_path / "end"
        message = train.submit(
            f"import pathlib, time\nwhile not pathlib.Path({str(end)!r}).exists(): time.sleep(0.02)"
        )
        _wait(lambda: listed()["train.ipynb"][3] == 0)
        assert _contains(own.run("%gpu -p").text, "train.ipynb in ")
        end.touch()
        train.wait(message)
        _wait(lambda: (listed()["train.ipynb"][3] or 0) >= 1)
        # Its server shuts it down, when the user says so.
        assert "is this notebook" in own.run("%gpu shutdown eval.ipynb --yes", raising=False).shown
        question, reply = own.answered("%gpu shutdown train.ipynb", "n")
        assert f"Shut down {tmp_path / 'ann/train.ipynb'}, which holds " in question
        assert _contains(reply.text, "train.ipynb was not shut down.")
        assert len(with_token.ask("GET", "sessions")) == 1
        train.run("assert x.value")
        _, reply = own.answered("%gpu shutdown train.ipynb", "y")
        assert _contains(reply.text, "train.ipynb was shut down by its server; it held ")
        assert with_token.ask("GET", "sessions") == []
        assert listed().keys() == {"eval.ipynb"}
        # One without a token has a notebook shut down, too.
        other = without.open("other.ipynb")
        ending.callback(other.close)
        assert _contains(own.run("%gpu shutdown other.ipynb --yes").text, "was shut down")
        assert [each["name"] for each in without.ask("GET", "sessions")] == ["eval.ipynb"]
