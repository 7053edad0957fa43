"""The first program of a restarted process: commands run as in Python, interrupts wait."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpumagic.restart import command_line, loader


def test_commands_run_as_python_runs_them(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("import sys; print(__name__, sys.argv, sys.path[0])")
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__main__.py").write_text("import sys; print(__name__, sys.argv)")
    (tmp_path / "module.py").write_text("import sys; print(__name__, sys.argv[1:], sys.orig_argv)")
    for words in (
        ["script.py", "a", "-b"],
        ["-B", "-X", "utf8", "-m", "package", "--", "-c"],
        ["-W", "ignore", "-Bm", "module", "x"],
        ["-c", "import sys; print(__name__, sys.argv, sys.path[0])", "-x"],
    ):
        options, program = command_line.split(words)
        shown = [
            subprocess.run(
                [sys.executable, *options, *between, *program],
                cwd=tmp_path,
                capture_output=True,
                text=True,
                check=True,
            ).stdout
            for between in ([], [command_line.LOADER])
        ]
        assert shown[0] == shown[1]
        assert shown[0].startswith("__main__")


@pytest.fixture
def deferred(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    before = signal.getsignal(signal.SIGINT)
    monkeypatch.setattr(loader, "interrupts", 0)
    loader.defer_interrupts()
    yield
    signal.signal(signal.SIGINT, before)


def test_interrupts_are_counted(deferred: None) -> None:
    signal.raise_signal(signal.SIGINT)
    signal.raise_signal(signal.SIGINT)
    assert loader.interrupts == 2


def test_the_second_interrupt_raises_in_the_block(deferred: None) -> None:
    with loader.second_interrupt_raises():
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    signal.raise_signal(signal.SIGINT)
    assert loader.interrupts == 3


@pytest.mark.parametrize(
    ("kernel", "handler"), [(None, signal.default_int_handler), (object(), signal.SIG_IGN)]
)
def test_interrupts_are_restored(deferred: None, kernel: Any, handler: Any) -> None:
    loader.restore_interrupts(kernel)
    assert signal.getsignal(signal.SIGINT) is handler


def test_a_failure_in_a_terminal_is_one_line(
    deferred: None, capsys: pytest.CaptureFixture[str]
) -> None:
    shell = SimpleNamespace(execution_count=1)
    error = ValueError("broken\nin two lines")
    loader.answer_failure(shell, {"counters": {"next": 7}}, error)
    assert shell.execution_count == 7
    said = capsys.readouterr().err
    assert said.startswith("the restart failed: ValueError: broken. This is a fresh process")
    assert said.count("\n") == 1
