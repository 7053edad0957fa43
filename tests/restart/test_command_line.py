"""The command line with which a process executes itself again."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpumagic.errors import RestartError
from gpumagic.restart import command_line


@pytest.mark.parametrize(
    ("words", "options", "program"),
    [
        (["script.py", "-x"], [], ["script.py", "-x"]),
        (["-m", "ipykernel", "-f", "x"], [], ["-m", "ipykernel", "-f", "x"]),
        (["-Bm", "ipykernel"], ["-B"], ["-m", "ipykernel"]),
        (["-mipykernel"], [], ["-m", "ipykernel"]),
        (["-X", "utf8", "-Xdev", "a.py"], ["-X", "utf8", "-Xdev"], ["a.py"]),
        (["-BW", "ignore", "-c", "x = 1"], ["-BW", "ignore"], ["-c", "x = 1"]),
        (["--check-hash-based-pycs", "never", "a"], ["--check-hash-based-pycs", "never"], ["a"]),
        (["-", "a"], [], ["-", "a"]),
        ([], [], []),
    ],
)
def test_split(words: list[str], options: list[str], program: list[str]) -> None:
    assert command_line.split(words) == (options, program)


def _app(*argv: str, **attributes: Any) -> Any:
    return SimpleNamespace(argv=[*argv], **attributes)


def test_the_command_runs_the_loader(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "orig_argv", ["python", "-B", "-m", "ipykernel", "-f", "k.json"])
    assert command_line.command(_app("-f", "k.json")) == [
        *(sys.executable, "-B", command_line.LOADER, "-m", "ipykernel", "-f", "k.json")
    ]


@pytest.mark.parametrize(
    ("orig_argv", "app", "said"),
    [
        (["python", "mine.py"], _app("other"), "embedded in another program"),
        (["python", "mine.py"], _app(), "embedded in another program"),
        (["ipython", "a.py"], _app("a.py", interact=False), "a script"),
    ],
)
def test_what_cannot_be_executed_again(
    monkeypatch: pytest.MonkeyPatch, orig_argv: list[str], app: Any, said: str
) -> None:
    monkeypatch.setattr(sys, "orig_argv", orig_argv)
    with pytest.raises(RestartError, match=said):
        command_line.command(app)


def test_an_interpreter_that_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(RestartError, match="cannot be executed again: '/nowhere/python'"):
        command_line.command(_app())


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("print('0.0')", "gpumagic 0.0 has been installed over"),
        ("raise OSError('no such\\nfile')", "would not start: OSError: no such"),
        ("raise SystemExit(3)", "would not start: status 3"),
    ],
)
def test_a_trial_that_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str, said: str
) -> None:
    loader = tmp_path / "loader.py"
    loader.write_text(program)
    monkeypatch.setattr(command_line, "LOADER", str(loader))
    command = [sys.executable, str(loader), "-m", "ipykernel"]
    with (
        command_line.Trial(command, dict(os.environ), "kernel", str(tmp_path)) as trial,
        pytest.raises(RestartError, match=said),
    ):
        trial.result()
