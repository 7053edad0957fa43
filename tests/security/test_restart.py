"""A restart lets nobody else in: by a planted file, a folder made anew, or a socket's place."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpumagic.errors import RestartError
from gpumagic.restart import ports, program
from tests.restart import FREEZE, PID
from tests.support.kernels import Kernel, running_kernel
from tests.support.other_user import UID, needs_root, run_as_other_user
from tests.support.planted_modules import PlantedModules

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux restarts in place")

Kernels = Callable[..., Kernel]


def of_a_stranger(file: Path) -> str:
    """What a connection file would say that leads to another kernel."""
    said = json.loads(file.read_text())
    return json.dumps({k: 1 if k.endswith("_port") else said[k] for k in said} | {"key": "theirs"})


def test_a_connection_file_that_was_replaced_is_not_read(kernel: Kernels) -> None:
    """Who knows its key runs code here. Nor is one missed."""
    k = kernel()
    file, pid = Path(k.manager.connection_file), k.value(PID)
    stranger = of_a_stranger(file)
    file.unlink()
    file.write_text(stranger)
    assert "restarted" in k.run("%gpu restart").text
    assert file.read_text() == stranger
    file.unlink()
    assert "restarted" in k.run("%gpu restart").text
    assert k.value(PID) == pid


@pytest.mark.parametrize(
    "words",
    [["-f", "k.json"], ["-f=k.json"], ["--f=k.json"], ["--IPKernelApp.connection_file=k.json"], []],
)
def test_the_connection_file_is_named_in_full(
    words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "orig_argv", ["python", "-m", "ipykernel_launcher", "--debug", *words])
    app: Any = SimpleNamespace(argv=words, extra_extensions=[], extra_config_file="", kernel=None)
    app.abs_connection_file, app.shell = "./k.json", SimpleNamespace(starting_dir="/started")
    made = program.command(app, "ours")
    assert made[made.index("-f") + 1] == "/started/k.json"
    assert [word for word in made if "k.json" in word] == ["/started/k.json"]
    assert made[1:4] == ["-m", "ipykernel_launcher", "--debug"]


@needs_root
def test_a_folder_that_another_user_has_made_anew_is_not_entered(
    kernel: Kernels, shared_folder: Path, tmp_path: Path
) -> None:
    """Neither to start Python there, nor as the working folder, nor by what is imported."""
    planted, k = PlantedModules(tmp_path), kernel()
    folder = shared_folder / "project"
    folder.mkdir()
    k.run(f"import os, torch; os.chdir({str(folder)!r}); x = torch.ones(2)")
    k.run(f"get_ipython().starting_dir = {str(folder)!r}")
    folder.rmdir()
    run_as_other_user(f"os.mkdir({str(folder)!r})")
    for each in planted.folder.iterdir():
        shutil.copy(each, folder)
        os.chown(folder / each.name, UID, UID)
    said = k.run("%gpu restart").text
    assert "The working folder was removed: this process is in " in " ".join(said.split())
    assert k.value("(os.getcwd(), x.tolist())") == (str(Path.home()), [1.0, 1.0])
    assert planted.used == []


@pytest.mark.parametrize("how", ["entered", "ipykernel", "PYTHONPATH"])
def test_a_restart_runs_no_file_of_the_working_folder(
    how: str, child_environment: Callable[..., dict[str, str]], tmp_path: Path
) -> None:
    """No module that a library imports where it is there, and no entry point.

    The kernel enters the folder later; or it was started there, and Python has its full name.
    """
    folder, environment = tmp_path / "planted", child_environment()
    folder.mkdir()
    (folder / "helpers.py").write_text("class Mine:\n    x = 7\n")
    if how == "PYTHONPATH":
        environment["PYTHONPATH"] += os.pathsep  # an empty entry
    # The dynamic linker takes an empty entry for the working folder.
    environment["LD_LIBRARY_PATH"] = f"{environment.get('LD_LIBRARY_PATH', '/lib')}:"
    launcher = "ipykernel" if how == "ipykernel" else "ipykernel_launcher"
    started_in = tmp_path if how == "entered" else folder
    with running_kernel(started_in, environment, fresh=True, launcher=launcher) as k:
        # What the old process imports comes from where it always did: the notebook's import path.
        k.run(f"import sys, os, torch, numpy; os.chdir({str(folder)!r}); from helpers import Mine")
        k.run("x = torch.ones(2); gen = (i for i in [])")
        assert "gen (cannot" in k.run("%gpu restart", raising=False).shown
        k.run("del gen; x = torch.ones(2); y = numpy.ones(2); mine = Mine()")
        k.run("sys.path.insert(0, '')" if "" not in k.value("sys.path") else "")
        k.run("path = [*sys.path]")
        assert k.value(f"{str(folder)!r} in path") == (how != "entered")
        planted = PlantedModules(tmp_path)
        info = folder / "stranger-1.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: stranger\nVersion: 1\n")
        (info / "entry_points.txt").write_text("[torch.backends]\nstranger = stranger:run\n")
        log = tmp_path / "used.txt"
        (folder / "stranger.py").write_text(f"open({str(log)!r}, 'a').write('stranger')\n")
        assert "No variable was lost" in k.run("%gpu restart").text
        assert k.value("(sys.path == path, os.getcwd(), x.tolist(), y.tolist(), mine.x)") == (
            *(True, str(folder), [1.0, 1.0], [1.0, 1.0], 7),
        )
        assert planted.used == []
        started = k.value("open('/proc/self/environ').read().split(chr(0))")
        assert not [each for each in started if re.match("LD_LIBRARY_PATH=.*:$", each)]
        assert k.value("os.environ['LD_LIBRARY_PATH']") == environment["LD_LIBRARY_PATH"]
        (folder / "later.py").touch()
        k.run("import helpers, later; assert type(mine) is helpers.Mine")


def test_nobody_else_can_listen_on_the_ports(kernel: Kernels) -> None:
    """Another user who tries all the time would get the next cell's text."""
    k = kernel()
    k.run(f"{FREEZE}; x = 1")
    names = ("shell_port", "iopub_port", "stdin_port", "control_port", "hb_port")
    info, taken, running = k.client.get_connection_info(), list[int](), threading.Event()

    def listen() -> None:
        while not running.is_set():
            for port in (info[name] for name in names):
                with suppress(OSError):
                    socket.create_server((info["ip"], port)).close()
                    taken.append(port)

    thread = threading.Thread(target=listen)
    thread.start()
    try:
        for number in "12":
            assert "restarted" in k.run(f"{FREEZE}\n%gpu {number} --restart --keep x").text
    finally:
        running.set()
        thread.join()
    assert taken == []
    assert k.value("x") == 1


@pytest.mark.parametrize("started", [{"transport": "ipc"}, {"extra_config_file": "mine.py"}])
def test_a_connection_that_cannot_be_held_is_refused(started: dict[str, str]) -> None:
    """Sockets that are files, which others may replace; a configuration in the place of ours."""
    app: Any = SimpleNamespace(**{"transport": "tcp", "extra_config_file": ""})
    ports.check(app)
    vars(app).update(started)
    with pytest.raises(RestartError, match="transport tcp"):
        ports.check(app)
