"""What needs a process of its own: missing libraries, masks, forks, and processes side by side."""

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

import pytest

from tests.support import forks
from tests.support.device import ROOT
from tests.support.kernels import python_environment
from tests.support.waiting import until

from . import GPU, Mig, Scenario, World, default_uuid, environment
from .build import libraries
from .world import STATE

GIB = 2**30
DRIVER = textwrap.dedent(
    """
    import ctypes, json, os
    def driver():
        return ctypes.CDLL("libcuda.so.1")
    def visible(lib):
        "The UUIDs behind the ordinals, or the error of cuInit."
        error = lib.cuInit(0)
        if error:
            return error
        n = ctypes.c_int()
        lib.cuDeviceGetCount(ctypes.byref(n))
        found = []
        for i in range(n.value):
            raw = (ctypes.c_ubyte * 16)()
            lib.cuDeviceGetUuid_v2(raw, i)
            found.append(bytes(raw).hex())
        return found
    """
)


def variables(scenario: Scenario | Mapping[str, str], **env: str) -> dict[str, str]:
    base = environment(scenario) if isinstance(scenario, Scenario) else scenario
    # Masks in the environment of the caller do not apply.
    variables = {k: v for k, v in base.items() if not k.startswith(("CUDA_", "PYTORCH_"))}
    return python_environment({**variables, **env})


def start(scenario: Scenario | Mapping[str, str], code: str, **env: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", code],
        env=variables(scenario, **env),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(scenario: Scenario | Mapping[str, str], code: str, **env: str) -> Any:
    """What the last line that `code` prints says, as JSON."""
    code = f"import warnings; warnings.simplefilter('ignore')\n{textwrap.dedent(code)}"
    done = forks.run([sys.executable, "-c", code], env=variables(scenario, **env))
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def hexes(*indexes: int) -> list[str]:
    return [default_uuid(i).removeprefix("GPU-").replace("-", "") for i in indexes]


def test_no_driver() -> None:
    """As on a laptop: the library cannot be found, and torch says so in its own words."""
    found = run(
        Scenario(driver=False),
        """
        import ctypes, json, torch
        try:
            ctypes.CDLL("libcuda.so.1")
            loads = None
        except OSError as error:
            loads = str(error)
        try:
            torch.zeros(1, device="cuda")
        except RuntimeError as error:
            message = str(error)
        print(json.dumps([loads, torch.cuda.is_available(), message]))
        """,
    )
    assert "libcuda.so.1: cannot open shared object file" in found[0]
    assert found[1] is False
    assert found[2].startswith("Found no NVIDIA driver on your system")


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
    "0,1": [0, 1],
    "3,1": [3, 1],
    "": [],
    "-1": [],
    "NoDevFiles": [],
    "void": [],
    "none": [],
    "all": [],
    "gpu-b0000000": [],
    "0,-1,1": [0],
    "0,2,-1,1": [0, 2],
    "0,0": [],
    "9,0": [],
    "0,9": [0],
    "0,9,0": [],
    "1gpu2,2amp": [1, 2],
    " 0, 1 ": [0, 1],
    "0;1": [0],
    UNIQUE[1]: [1],
    "GPU-b": [2],
    "GPU-aaa": [],
    "GPU-B": [],
    "GPU-b,GPU-c": [2, 3],
    "GPU-b, GPU-c": [2],
    f"GPU-b,{UNIQUE[2]}": [],
    "GPU-b,0": [2],
}
NAMED_TWICE = ("0,0", "0,9,0", f"GPU-b,{UNIQUE[2]}")


def test_masks_as_torch_reads_them() -> None:
    """The driver and torch's own parser (over NVML) agree, and the driver sees the right ones."""
    found = run(
        Scenario(devices=[GPU(uuid=uuid) for uuid in UNIQUE]),
        DRIVER
        + f"""
masks = {list(MASKS)!r}
seen = []
for mask in masks:  # the driver reads a mask once, so each has its own process
    read, write = os.pipe()
    if os.fork() == 0:
        os.environ["CUDA_VISIBLE_DEVICES"] = mask
        os.write(write, json.dumps(visible(driver())).encode())
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


def test_a_mixed_machine_has_two_orders() -> None:
    """CUDA counts the fastest first, nvidia-smi by PCI bus; CUDA_DEVICE_ORDER makes them agree."""
    env = environment(Scenario(devices=[GPU("NVIDIA T4"), GPU()], cuda_order=[1, 0]))
    show = DRIVER + "print(json.dumps(visible(driver())))"
    assert run(env, show) == hexes(1, 0)
    assert run(env, show, CUDA_DEVICE_ORDER="PCI_BUS_ID") == hexes(0, 1)
    assert run(env, show, CUDA_VISIBLE_DEVICES="0") == hexes(1)
    assert run(env, show, CUDA_VISIBLE_DEVICES=default_uuid(0)) == hexes(0)
    mask = {"CUDA_VISIBLE_DEVICES": "0", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    assert run(env, show, **mask) == hexes(0)


def test_mig_instances() -> None:
    """A GPU in MIG mode lends its first instance, or the one that the mask names."""
    scenario = Scenario(devices=[GPU(mig=[Mig(), Mig("2g.20gb", 20 * GIB)]), GPU()])
    env = environment(scenario)
    first, second = (default_uuid(0, i).removeprefix("MIG-").replace("-", "") for i in range(2))
    show = DRIVER + "print(json.dumps(visible(driver())))"
    assert run(env, show, CUDA_VISIBLE_DEVICES="0") == [first]
    assert run(env, show, CUDA_VISIBLE_DEVICES="MIG-" + default_uuid(0) + "/2/0") == [second]
    assert run(env, show) == [first]  # a single instance, and no other GPU beside it
    both = f"{default_uuid(0, 1)},{default_uuid(0, 0)}"
    assert run(env, show, CUDA_VISIBLE_DEVICES=both) == [second]
    code = """
        import json, pynvml, torch
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        migs = [pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, i) for i in range(2)]
        torch.zeros(1, device="cuda")
        print(json.dumps([
            torch.cuda.device_count(),
            torch.cuda.mem_get_info()[1],
            [pynvml.nvmlDeviceGetUUID(mig) for mig in migs],
            [pynvml.nvmlDeviceGetMemoryInfo(mig).used > 0 for mig in migs],
        ]))
    """
    uuids = [default_uuid(0, 0), default_uuid(0, 1)]
    found = run(env, code, CUDA_VISIBLE_DEVICES=uuids[1])
    assert found == [1, 20 * GIB, uuids, [False, True]]


def test_the_choice_freezes_at_cuinit() -> None:
    """Before, the driver answers 3 and a new mask counts; after, none does."""
    found = run(
        Scenario(devices=2),
        """
        import ctypes, json, os, torch
        lib = ctypes.CDLL("libcuda.so.1", mode=os.RTLD_NOLOAD | os.RTLD_NOW)
        n = ctypes.c_int()
        torch.cuda.device_count()
        torch.device("cuda")
        steps = [lib.cuDeviceGetCount(ctypes.byref(n))]
        os.environ["CUDA_VISIBLE_DEVICES"] = "1"
        steps += [torch.cuda.is_available(), torch.cuda.is_initialized()]
        steps += [lib.cuDeviceGetCount(ctypes.byref(n)), n.value]
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
        steps += [torch.cuda.is_available(), torch.cuda.device_count()]
        steps += [torch.empty(1, device="cuda").device.index]
        os.environ["CUDA_VISIBLE_DEVICES"] = "1"  # torch 2.6 looks at it before it asks CUDA
        steps += [str(torch.cuda.get_device_properties(0).uuid)]
        print(json.dumps(steps))
        """,
    )
    assert found == [3, True, False, 0, 1, True, 0, 0, default_uuid(1).removeprefix("GPU-")]


def test_off_to_on_can_be_too_late() -> None:
    """With no device visible at the first question, the runtime keeps its failure."""
    found = run(
        Scenario(devices=1),
        """
        import ctypes, json, os, torch
        before = torch.cuda.is_available()
        os.environ["CUDA_VISIBLE_DEVICES"] = "0"
        lib, n = ctypes.CDLL("libcuda.so.1"), ctypes.c_int()
        probe = lib.cuDeviceGetCount(ctypes.byref(n))
        print(json.dumps([before, torch.cuda.is_available(), torch.cuda.device_count(), probe]))
        """,
        CUDA_VISIBLE_DEVICES="",
    )
    assert found == [False, False, 1, 3]


def test_contexts_are_made_on_first_use_and_forks_cannot_use_them() -> None:
    """A count or a property makes none; each costs memory; a forked child gets error 3."""
    found = run(
        Scenario(devices=3),
        """
        import ctypes, json, os, torch
        has = lambda: [torch._C._cuda_hasPrimaryContext(i) for i in range(3)]
        torch.cuda.is_available()
        torch.cuda.init()
        torch.cuda.get_device_properties(2)
        steps = [has()]
        torch.zeros(1, device="cuda:1")
        steps.append(has())
        import pynvml
        pynvml.nvmlInit()
        handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(3)]
        memory = [pynvml.nvmlDeviceGetMemoryInfo(h, version=pynvml.nvmlMemory_v2) for h in handles]
        steps.append([m.used >> 20 for m in memory])
        read, write = os.pipe()
        if os.fork() == 0:
            n = ctypes.c_int()
            error = ctypes.CDLL("libcuda.so.1").cuDeviceGetCount(ctypes.byref(n))
            os.write(write, str(error).encode())
            os._exit(0)
        os.wait()
        steps.append(int(os.read(read, 10)))
        print(json.dumps(steps))
        """,
    )
    assert found == [[False] * 3, [False, True, False], [0, 502, 0], 3]


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
                        env=variables(env),
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
        Scenario(devices=1),
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


@pytest.mark.parametrize(
    ("settings", "call"),
    [("expandable_segments:True", "cuMemCreate"), ("backend:cudaMallocAsync", "cudaMallocAsync*")],
)
def test_other_allocators(settings: str, call: str) -> None:
    """Virtual memory and memory pools: data comes back, memory is counted, too much is an error.

    The second case is slow: torch reads which backend it has where it is imported.
    """
    env = environment(Scenario(devices=1))
    late = settings.startswith("expandable")
    found = run(
        env,
        """
        import json, os, torch
        if "SETTINGS" in os.environ:
            torch.cuda.memory._set_allocator_settings(os.environ["SETTINGS"])
        data = torch.arange(3_000_000.0)
        blocks = [data.cuda() for _ in range(5)]
        good = all(torch.equal(block.cpu(), data) for block in blocks)
        held = torch.cuda.mem_get_info()
        try:
            torch.empty(90 * 2**30, dtype=torch.uint8, device="cuda")
        except torch.OutOfMemoryError:
            full = True
        del blocks
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        after = torch.cuda.mem_get_info()
        print(json.dumps([good, full, (after[0] - held[0]) >> 20]))
        """,
        **{"SETTINGS" if late else "PYTORCH_CUDA_ALLOC_CONF": settings},
    )
    assert World(env[STATE]).calls(call) > 0
    assert found[:2] == [True, True]
    assert 50 <= found[2] <= 64


def test_a_stub_is_counted_and_strictness_aborts() -> None:
    """A call that only a stub answers is on record, printed with the trace, fatal when strict."""
    env = environment(Scenario(devices=1))
    world = World(env[STATE])
    code = """if True:
        import ctypes
        print(ctypes.CDLL("libcuda.so.1").cuTensorMapEncodeTiled())
    """
    out, errors = start(env, code, VIRTUAL_GPU_TRACE="1").communicate(timeout=300)
    assert out.strip() == "801"
    assert "cuTensorMapEncodeTiled is not implemented" in errors
    assert world.unimplemented_calls() == {"cuTensorMapEncodeTiled": 1}
    strict = start(env, code, VIRTUAL_GPU_STRICT="1")
    strict.communicate(timeout=300)
    assert strict.returncode == -signal.SIGABRT
    world.forget_unimplemented("cuTensorMapEncodeTiled")
    assert not world.unimplemented_calls()


def test_the_command_line() -> None:
    """It runs a command on as many GPUs as asked for, and hands on its exit status."""
    code = "import pynvml as n; n.nvmlInit(); raise SystemExit(n.nvmlDeviceGetCount())"
    command = [sys.executable, "-m", "tests.virtual_gpu", "--devices", "8", "--"]
    done = subprocess.run([*command, sys.executable, "-c", code], env=os.environ, check=False)
    assert done.returncode == 8
