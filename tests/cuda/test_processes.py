"""The processes on a GPU: their commands, without the arguments of other users' processes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import gpumagic
from gpumagic.cuda import devices
from gpumagic.cuda.devices import command_name
from gpumagic.results.devices import Process
from tests.support.gpu_processes import running

SECRET = "--token=hunter2"


@pytest.fixture(autouse=True)
def _same_pids(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "in_first_pid_namespace", lambda: True)


def found(pid: int) -> Process:
    (one,) = (p for p in gpumagic.devices()[0].processes or () if p.pid == pid)
    return one


def test_arguments_are_not_shown(virtual_gpu: Any, run_cell: Callable[..., Any]) -> None:
    """Nor are they in the data."""
    with running(virtual_gpu, SECRET) as pid:
        one = found(pid)
        assert one.command is not None
        assert one.command.endswith(" -c")
        assert one.mine is True
        shown = run_cell("%gpu -p -o")
        assert SECRET not in shown.text + shown.html + shown.value.to_json()


@pytest.mark.parametrize(
    ("words", "name", "expected"),
    [
        (
            ["/usr/bin/python3", "/home/ann/secret project/train.py", SECRET],
            "x",
            "python3 train.py",
        ),
        (["python", "-u", "-X", "dev", "-W", "error", "a.py", SECRET], "x", "python a.py"),
        (
            ["python3.11", "-m", "torch.distributed.run", SECRET],
            "x",
            "python3.11 -m torch.distributed.run",
        ),
        (["python", "-m"], "x", "python -m"),
        (["python", "-c", SECRET], "x", "python -c"),
        (["python", f"-c{SECRET}"], "x", "python -c"),
        (["python", "-u"], "x", "python -u".split()[0]),
        (["python3", "-uc", SECRET], "x", "python3 -c"),
        (["python3", "-Ic", SECRET], "x", "python3 -c"),
        (["python3", "-", SECRET], "x", "python3 -"),
        (["python", "-mfoo", SECRET], "x", "python -m foo"),
        (["python", "-BW", "error", "a.py", SECRET], "x", "python a.py"),
        (["python", "-Xdev", "a.py", SECRET], "x", "python a.py"),
        (["python", "--check-hash-based-pycs", "never", "a.py", SECRET], "x", "python a.py"),
        (["pypy-job", SECRET], "x", "pypy-job"),
        (["C:\\Python\\pythonw.exe", "d:\\x\\a.py"], "x", "pythonw.exe a.py"),
        (["java", "-jar", SECRET], "java", "java"),
        ([f"python train.py {SECRET}"], "python train.py", "python"),
        ([f"postgres: ann {SECRET}", ""], "postgres", "postgres"),
        *(([f"python{s}train.py{s}{SECRET}"], "python", "python") for s in "\t\xa0\u2003\n"),
        *(([f"job{s}--url=a/{SECRET}"], "job", "job") for s in " \t\xa0"),
        ([f"job\t{SECRET}"], f"job\t{SECRET}", "job"),
        (["python\t-c", SECRET[2:]], "python", "python"),
        *((["python", f"a.py{s}--url=a/{SECRET}"], "x", "python a.py") for s in " \t\xa0"),
        *((["python", f"/a/a.py{s}{SECRET[2:]}"], "x", "python a.py") for s in " \t\xa0"),
        *((["python", "-m", f"a.b{s}{SECRET}"], "x", "python -m a.b") for s in " \t\xa0"),
        *(
            (["python", option, SECRET[2:]], "x", "python")
            for option in (
                "-V",
                "-VV",
                "-uV",
                "-?",
                "-h",
                "-Z",
                "-u\t",
                "--help-all",
                "--",
                "--x=y",
            )
        ),
        (["\t"], "", ""),
        (["python", "\t"], "x", "python"),
        ([], "Xorg", "Xorg"),
        (["", ""], "", ""),
        (["/"], "x", "/"),
        (["python", "x" * 10**6], "x", f"python {'x' * 64}"),
        (["y" * 10**6], "x", "y" * 64),
    ],
)
def test_the_name_of_a_command(words: list[str], name: str, expected: str) -> None:
    assert command_name(words, name) == expected
