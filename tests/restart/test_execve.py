"""The child processes that a restart would end, by name."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gpumagic.cuda import devices
from gpumagic.restart import execve, losses
from tests.support.gpu_processes import running

SECRET = "--token=hunter2"


@pytest.fixture(autouse=True)
def _same_pids(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "in_first_pid_namespace", lambda: True)


@pytest.mark.skipif(os.name == "nt", reason="Windows restarts nothing")
@pytest.mark.parametrize("psutil", [True, False])
def test_children_that_a_restart_would_end_are_told_by_name(
    virtual_gpu: Any, monkeypatch: pytest.MonkeyPatch, psutil: bool
) -> None:
    if not psutil:
        monkeypatch.setitem(sys.modules, "psutil", None)
    program = Path(sys.executable).name
    with running(virtual_gpu, SECRET) as pid, running(virtual_gpu, "forkserver") as other:
        refused = " ".join(losses.named({}))
        assert f"{pid} ({program} -c)" in refused
        assert f"{other} ({program} -c)" in refused
        assert SECRET not in refused
    helper = [sys.executable, "-c", "input()", "torch_shm_manager"]
    with subprocess.Popen(helper, stdin=subprocess.PIPE) as ends_by_itself:
        assert ends_by_itself.pid not in execve.children()
        assert ends_by_itself.pid in execve.children(helpers=True)
        ends_by_itself.communicate(b"\n")
