"""What needs a process of its own: a hidden library, and processes side by side."""

from __future__ import annotations

import json
import os
import signal
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.support import forks
from tests.support.kernels import python_environment
from tests.support.other_process import running
from tests.support.waiting import until

from . import Scenario, World, environment
from .build import libraries
from .world import STATE

GIB = 2**30


def run(environment: Mapping[str, str], code: str) -> Any:
    """What the last line that `code` prints says, as JSON."""
    code = f"import warnings; warnings.simplefilter('ignore')\n{textwrap.dedent(code)}"
    said = forks.output([sys.executable, "-c", code], env=python_environment(environment))
    return json.loads(said.splitlines()[-1])


def test_the_machines_own_driver_is_hidden(tmp_path: Path) -> None:
    """A scenario without a driver has none, on a machine that has one."""
    (tmp_path / "libcuda.so.1").symlink_to(libraries() / "driver" / "libcuda.so.1")
    own = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path)}
    code = """
        import ctypes, json
        try:
            ctypes.CDLL("libcuda.so.1")
            print(json.dumps("loaded"))
        except OSError as error:
            print(json.dumps(str(error)))
    """
    assert run(own, code) == "loaded"
    assert "cannot open shared object" in run(environment(Scenario(driver=False), own), code)


HOLD = "import torch; block = torch.empty({} << 30, dtype=torch.uint8, device='cuda')"


def test_processes_share_a_device_and_a_killed_one_gives_back() -> None:
    """NVML tells one what another holds, until that is gone, however it went."""
    env = environment(Scenario(devices=1))
    world = World(env[STATE])
    code = """
        import json, pynvml
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        # In this order: when a process is no longer listed, its memory is free.
        all = pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
        free = pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2).free
        print(json.dumps([free >> 30, {p.pid: p.usedGpuMemory >> 30 for p in all}]))
    """
    with running(HOLD.format(70), env=env) as first, running(HOLD.format(5), env=env) as second:
        free, processes = run(env, code)
        assert free == 3
        assert processes[str(first)] == 70
        assert processes[str(second)] == 5
        assert world.used(0, first) > 70 * GIB
        os.kill(first, signal.SIGKILL)
        until(lambda: str(first) not in run(env, code)[1])  # a zombie holds nothing either
        assert run(env, code)[0] == 74


def test_exec_gives_back_what_the_old_image_held() -> None:
    """The same pid with a new program starts with nothing."""
    found = run(
        environment(Scenario(devices=1)),
        """
        import os, sys, torch
        torch.empty(10 * 2**30, dtype=torch.uint8, device="cuda")
        code = '''if True:
            import json, pynvml
            pynvml.nvmlInit()
            handle = pynvml.nvmlDeviceGetHandleByIndex(0)
            memory = pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
            print(json.dumps(memory.used))'''
        os.execv(sys.executable, [sys.executable, "-c", code])
        """,
    )
    assert found == 0


def test_the_command_line_says_what_only_a_stub_answered() -> None:
    """It runs a command on as many GPUs as asked for, and hands on its exit status."""
    code = "import ctypes, pynvml as n; n.nvmlInit()\n"
    code += "ctypes.CDLL('libcuda.so.1').cuTensorMapEncodeTiled()\n"
    code += "raise SystemExit(n.nvmlDeviceGetCount())"
    command = [sys.executable, "-m", "tests.virtual_gpu", "--devices", "8", "--"]
    traced = {**os.environ, "VIRTUAL_GPU_TRACE": "1"}
    done = forks.run([*command, sys.executable, "-c", code], env=traced, fresh=True)
    assert done.returncode == 8
    assert "cuTensorMapEncodeTiled is not implemented (answers 801)" in done.stderr
    assert "cuTensorMapEncodeTiled is not implemented, called 1 times" in done.stderr
