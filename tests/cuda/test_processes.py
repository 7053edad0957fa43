"""The processes on a GPU: their commands, without the arguments of other users' processes."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

import gpumagic
from gpumagic.cuda import processes
from gpumagic.cuda.processes import command_name
from gpumagic.results.processes import Process
from tests.support.other_process import running
from tests.support.other_user import UID

SECRET = "--token=hunter2"
RUN = "torch.distributed.run"
BLANKS = " \t\xa0"


@pytest.fixture(autouse=True)
def _same_pids(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "in_first_pid_namespace", lambda: True)


def found(pid: int) -> Process:
    (one,) = (p for p in gpumagic.devices()[0].processes or () if p.pid == pid)
    return one


@pytest.mark.parametrize(
    ("words", "name", "expected"),
    [
        (["/usr/bin/python3", "/home/ann/my project/train.py", SECRET], "x", "python3 train.py"),
        (["python3.11", "-m", "torch.distributed.run", SECRET], "x", f"python3.11 -m {RUN}"),
        (["python", "-m"], "x", "python -m"),
        (["python", "-mfoo", SECRET], "x", "python -m foo"),
        (["python", f"-c{SECRET}"], "x", "python -c"),
        (["python3", "-uc", SECRET], "x", "python3 -c"),
        (["python3", "-", SECRET], "x", "python3 -"),
        (["python", "-u", "-X", "dev", "-BW", "error", "a.py", SECRET], "x", "python a.py"),
        (["python", "--check-hash-based-pycs", "never", "a.py", SECRET], "x", "python a.py"),
        (["C:\\Python\\pythonw.exe", "d:\\x\\a.py"], "x", "pythonw.exe a.py"),
        (["java", "-jar", SECRET], "java", "java"),
        # A process may set its title, with everything in one word.
        ([f"postgres: ann {SECRET}", ""], "postgres", "postgres"),
        *(([f"python{s}train.py{s}{SECRET}"], "python", "python") for s in BLANKS),
        *(([f"job{s}--url=a/{SECRET}"], "job", "job") for s in BLANKS),
        *((["python", f"/a/a.py{s}--url=a/{SECRET}"], "x", "python a.py") for s in BLANKS),
        *((["python", "-m", f"a.b{s}{SECRET}"], "x", "python -m a.b") for s in BLANKS),
        *((["python", option, SECRET[2:]], "x", "python") for option in ("-V", "-uV", "-?", "--")),
        ([], "Xorg", "Xorg"),
        (["", ""], "", ""),
        (["python", "x" * 10**6], "x", f"python {'x' * 64}"),
        (["y" * 10**6], "x", "y" * 64),
    ],
)
def test_the_name_of_a_command(words: list[str], name: str, expected: str) -> None:
    assert command_name(words, name) == expected


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("work/train.ipynb", "train.ipynb"),
        ("\x1b[31m.ipynb", "\ufffd[31m.ipynb"),
        ("5c2b8e0e-7a0d-4c2c", None),
        ("notes.txt", None),
        ("", None),
    ],
)
def test_the_name_of_a_notebook(path: str, name: str | None) -> None:
    process = SimpleNamespace(environ=lambda: {"JPY_SESSION_NAME": path} if path else {})
    assert processes.notebook(process) == name


def test_a_notebook_that_cannot_be_read() -> None:
    def refused() -> None:
        raise psutil.AccessDenied

    assert processes.notebook(SimpleNamespace(environ=refused)) is None


def test_notebooks_of_others_are_not_read(
    virtual_gpu: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though root may."""
    env = {**os.environ, "JPY_SESSION_NAME": "train.ipynb"}
    with running("", env=env) as pid:
        virtual_gpu.add_process(0, pid, 2**30)
        assert found(pid).notebook == "train.ipynb"
        monkeypatch.setattr(os, "getuid", lambda: UID)
        assert (found(pid).mine, found(pid).notebook) == (False, None)
