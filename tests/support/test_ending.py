"""No process or file outlives a run of the tests, however it ends; each case starts pytest."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support import ports, reaper
from tests.support.device import ROOT
from tests.support.interrupts import UNTIL_INTERRUPTED

#: A test that leaves a process behind, in a session of its own, with a scenario; and a file.
_INNER = """
import os, subprocess, sys, tempfile, time
from pathlib import Path

import pytest

from tests.virtual_gpu import environment

@pytest.fixture
def started():
    sleeping = [sys.executable, "-c", "import time; time.sleep(600)"]
    env = environment()
    Path(tempfile.gettempdir(), "left").touch()
    with subprocess.Popen([*sleeping], env=env, start_new_session=True) as process:
        note = Path({note!r})
        state = env["VIRTUAL_GPU_STATE"]
        note.with_suffix(".new").write_text(f"{{os.getpid()}} {{process.pid}} {{state}}")
        note.with_suffix(".new").rename(note)
        yield
        process.returncode = 0
        raise RuntimeError("a fixture fails")

def test_it(started):
    {body}
"""


def _until(true: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 600
    while not true():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


@pytest.mark.parametrize("how", ["a failing fixture", "SIGINT", "SIGKILL", "a killed worker"])
def test_nothing_is_left(tmp_path: Path, how: str) -> None:
    """Slow: each case is a run of pytest, whose start and end are the question."""
    note = tmp_path / "note"
    body = "pass" if how == "a failing fixture" else UNTIL_INTERRUPTED
    inner = tmp_path / "test_inner.py"
    inner.write_text(_INNER.format(note=str(note), body=body))
    temporary = tmp_path / "with blanks"
    temporary.mkdir()
    env = {k: v for k, v in os.environ.items() if k not in (reaper.MARK, "VIRTUAL_GPU_STATE")}
    env = {k: v for k, v in env.items() if not k.startswith("PYTEST_")}
    # A file elsewhere: whoever kills these tests shall not find it among them.
    options = ["-c", str(ROOT / "pyproject.toml"), f"--rootdir={ROOT}", "-p", "tests.conftest"]
    options += ["-p", "no:cacheprovider", "-q", "--patience=0.5"]
    options += ["-n", "1"] if how == "a killed worker" else []
    run = subprocess.Popen(
        [sys.executable, "-m", "pytest", *options, str(inner)],
        cwd=ROOT,
        env={**env, "TMPDIR": str(temporary)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    _until(lambda: note.exists() or run.poll() is not None, "the inner test did not begin")
    assert run.poll() is None or how == "a failing fixture", run.communicate()[0]
    worker, left, state = note.read_text().split(" ", 2)
    if how == "SIGINT":
        os.killpg(run.pid, signal.SIGINT)
    elif how == "SIGKILL":
        run.kill()
    elif how == "a killed worker":
        os.kill(int(worker), signal.SIGKILL)
    shown, _ = run.communicate(timeout=600)
    assert run.returncode not in (0, None), shown
    # After Ctrl-C, pytest shows only that its fixture failed.
    if how not in ("SIGINT", "SIGKILL"):
        assert "processes left behind, ended now" in shown
        assert f"\n{left}: " in shown
    _until(lambda: not Path(f"/proc/{left}").exists(), "the process is still there")
    _until(lambda: not Path(state).parent.exists(), "the scenario is still there")
    _until(lambda: not any(temporary.glob("gpumagic-tests-*")), "its folder is still there")
    assert not any(temporary.rglob("left"))


def test_two_runs_have_different_ports() -> None:
    """As many processes as runs: each takes ports, and all are different."""
    code = "from tests.support import ports; print(*ports.take(100), flush=True); input()"
    runs = [
        subprocess.Popen(
            [sys.executable, "-c", code],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    taken = [ports.take(100)]
    for run in runs:
        assert run.stdout is not None
        taken.append([int(word) for word in run.stdout.readline().split()])
    for run in runs:
        run.communicate("\n")
    assert len({port for each in taken for port in each}) == 300
