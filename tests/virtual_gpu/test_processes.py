"""What needs a process of its own: a hidden library, masks, and processes side by side."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from tests.support import forks
from tests.support.device import ROOT
from tests.support.kernels import python_environment
from tests.support.waiting import until

from . import GPU, Scenario, World, environment
from .build import libraries
from .world import STATE

GIB = 2**30
#: The UUIDs behind the ordinals, or the error of cuInit.
DRIVER = """
import ctypes, json, os
def visible():
    lib, n = ctypes.CDLL("libcuda.so.1"), ctypes.c_int()
    error = lib.cuInit(0)
    if error:
        return error
    lib.cuDeviceGetCount(ctypes.byref(n))
    found = []
    for i in range(n.value):
        raw = (ctypes.c_ubyte * 16)()
        lib.cuDeviceGetUuid_v2(raw, i)
        found.append(bytes(raw).hex())
    return found
"""


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


UNIQUE = ["GPU-aaaa1111-0000-4000-8000-000000000000", "GPU-aaab2222-0000-4000-8000-000000000000"]
UNIQUE += ["GPU-b0000000-0000-4000-8000-000000000000", "GPU-c0000000-0000-4000-8000-000000000000"]
MASKS: dict[str, list[int]] = {
    "3,1": [3, 1],
    "": [],
    "-1": [],
    "none": [],
    "all": [],
    "0,2,-1,1": [0, 2],
    "0,0": [],
    "0,9": [0],
    "0,9,0": [],
    "1gpu2,2amp": [1, 2],
    " 0, 1 ": [0, 1],
    "0;1": [0],
    UNIQUE[1]: [1],
    "GPU-b": [2],
    "GPU-aaa": [],
    "GPU-b,GPU-c": [2, 3],
    "GPU-b, GPU-c": [2],
    f"GPU-b,{UNIQUE[2]}": [],
    "GPU-b,0": [2],
}
NAMED_TWICE = ("0,0", "0,9,0", f"GPU-b,{UNIQUE[2]}")


def test_masks_as_torch_reads_them() -> None:
    """The driver and torch's own parser (over NVML) agree, and the driver sees the right ones."""
    found = run(
        environment(Scenario(devices=[GPU(uuid=uuid) for uuid in UNIQUE])),
        DRIVER
        + f"""
masks = {list(MASKS)!r}
seen = []
for mask in masks:  # the driver reads a mask once, so each has its own process
    read, write = os.pipe()
    if os.fork() == 0:
        os.environ["CUDA_VISIBLE_DEVICES"] = mask
        os.write(write, json.dumps(visible()).encode())
        os._exit(0)
    os.wait()
    seen.append(json.loads(os.read(read, 4096)))
import torch
counts = []
for mask in masks:
    os.environ["CUDA_VISIBLE_DEVICES"] = mask
    counts.append(torch.cuda._device_count_nvml())
print(json.dumps([seen, counts]))
""",
    )
    uuids = [uuid.removeprefix("GPU-").replace("-", "") for uuid in UNIQUE]
    failure = {mask: 101 if mask in NAMED_TWICE else 100 for mask in MASKS}
    expected = [[uuids[i] for i in each] or failure[mask] for mask, each in MASKS.items()]
    assert dict(zip(MASKS, found[0], strict=True)) == dict(zip(MASKS, expected, strict=True))
    counts = [len(indexes) for indexes in MASKS.values()]
    assert dict(zip(MASKS, found[1], strict=True)) == dict(zip(MASKS, counts, strict=True))


HOLD = """
import os, signal, torch
block = torch.empty(%d, dtype=torch.uint8, device="cuda")
print("ready", flush=True)
signal.pause()
"""


@contextmanager
def held(env: Mapping[str, str], *sizes: int) -> Iterator[list[Any]]:
    """Processes that have each allocated so many bytes."""
    processes: list[Any] = []
    with ExitStack() as cleanup:
        for size in sizes:
            read, write = os.pipe()
            with os.fdopen(write, "wb") as theirs, os.fdopen(read) as ours:
                processes.append(
                    forks.popen(
                        [sys.executable, "-c", HOLD % size],
                        env=python_environment(env),
                        cwd=ROOT,
                        stdin=subprocess.DEVNULL,
                        stdout=theirs,
                    )
                )
                cleanup.callback(processes[-1].wait)
                cleanup.callback(processes[-1].kill)
                theirs.close()
                assert ours.readline() == "ready\n"
        yield processes


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
    with held(env, 70 * GIB, 5 * GIB) as (first, second):
        free, processes = run(env, code)
        assert free == 3
        assert processes[str(first.pid)] == 70
        assert processes[str(second.pid)] == 5
        assert world.used(0, first.pid) > 70 * GIB
        os.kill(first.pid, signal.SIGKILL)
        until(lambda: str(first.pid) not in run(env, code)[1])  # a zombie holds nothing either
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
