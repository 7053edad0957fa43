"""The processes on a GPU: their commands, without the arguments of other users' processes."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest

import gpumagic
from gpumagic import cli
from gpumagic.cuda import devices
from gpumagic.cuda.processes import command_name, look_up
from gpumagic.results import Device, DeviceTable, Process
from gpumagic.results.base import as_html, as_text
from tests.support.gpu_processes import running
from tests.support.other_user import UID, needs_root

SECRET = "--token=hunter2"


@pytest.fixture(autouse=True)
def _same_pids(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "in_first_pid_namespace", lambda: True)


def found(pid: int, **options: Any) -> Process:
    (one,) = (p for p in gpumagic.devices(**options)[0].processes or () if p.pid == pid)
    return one


def test_arguments_are_not_shown(
    virtual_gpu: Any, run_cell: Callable[..., Any], capsys: Any
) -> None:
    """Nor shown, nor in the data; the user's own only on request."""
    with running(virtual_gpu, SECRET) as pid:
        one = found(pid)
        assert one.command is not None
        assert one.command.endswith(" -c")
        assert one.mine is True
        assert SECRET in str(found(pid, arguments=True).command)
        shown = run_cell("%gpu -p -o")
        assert SECRET not in shown.text + shown.html + shown.value.to_json()
        requested = run_cell("%gpu -p --arguments -o")
        assert SECRET in requested.value.to_json()
        assert cli.main(["table", "--json"]) == 0
        assert SECRET not in capsys.readouterr().out
        assert cli.main(["table", "--json", "--arguments"]) == 0
        assert SECRET in capsys.readouterr().out


@needs_root
def test_others_arguments_are_never_shown(
    virtual_gpu: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(virtual_gpu, SECRET) as pid:
        # Not as a second user, who may not be able to start this Python.
        monkeypatch.setattr(os, "getuid", lambda: UID)
        one = found(pid, arguments=True)
    assert one.mine is False
    assert SECRET not in str(one)


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


HOSTILE = "\x1b[2J\x1b]0;owned\x07\nline\r\x9b31m\u202egnp\u2066\u200b\U000e0041é 漢"


SEEN = "�[2J�]0;owned� line �31m�gnp���é 漢"


def test_a_name_has_no_control_characters(virtual_gpu: Any) -> None:
    with running(virtual_gpu, HOSTILE) as pid:
        table = DeviceTable(
            (Device(0, processes=(found(pid, arguments=True),)),), show_processes=True
        )
    for drawn in (as_text(table, 300), as_html(table)):
        assert SEEN in drawn


def test_only_some_of_many_are_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_up: list[int] = []
    many = [Process(pid, pid, own=False) for pid in range(1000, 11_000)]
    found = look_up(many, lambda pid: bool(looked_up.append(pid)))
    assert len(found) == 10_000
    assert sorted(looked_up) == list(range(10_800, 11_000))
