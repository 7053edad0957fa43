"""NVML's sessions, its lists of processes, and packages that are in its way."""

from __future__ import annotations

import html
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import gpumagic
from tests.support.kernels import Kernel
from tests.virtual_gpu import GPU, ExternalProcess, Scenario

GIB = 2**30


def open_sessions(virtual_gpu: Any) -> int:
    """How many sessions of pynvml's are open: each blocks a reset of the GPU, and MIG."""
    return int(virtual_gpu.calls("nvmlInitWithFlags") - virtual_gpu.calls("nvmlShutdown"))


@pytest.mark.parametrize(
    "asked",
    [
        *("%gpu", "%gpu -p", "%gpu off", "%gpu 0", "%gpu auto", "%gpu auto --idle --wait 0.1"),
        *("%gpu doctor", "%gpumem", "%gpumem vars", "%%cudatime\npass", "%%gpumem\npass"),
    ],
)
def test_no_session_stays_open(
    virtual_gpu: Any, run_cell: Callable[..., Any], asked: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")  # put back at the end
    run_cell(asked, raising=False)
    assert open_sessions(virtual_gpu) == 0


@pytest.mark.parametrize(
    "call", ["nvmlShutdown", "nvmlSystemGetDriverVersion", "nvmlDeviceGetCount"]
)
def test_a_gpu_that_is_lost_leaves_none_open(
    virtual_gpu: Any, run_cell: Callable[..., Any], call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where it is lost between two calls: the reset that it needs would be refused."""
    import pynvml

    original = getattr(pynvml, call)

    def lost() -> None:
        if call == "nvmlShutdown":
            original()
        raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)

    monkeypatch.setattr(pynvml, call, lost)
    shown = run_cell("%gpu", raising=False).text
    assert ("the GPU is lost" in shown) == (call == "nvmlDeviceGetCount")
    assert ("GPU 3" in shown or "cuda:3" in shown) == (call != "nvmlDeviceGetCount")
    assert open_sessions(virtual_gpu) == 0


def test_a_watch_holds_one_and_says_so(virtual_gpu: Any, kernel: Callable[..., Kernel]) -> None:
    watched = kernel()
    shown = html.unescape(watched.run("%gpu watch").html)
    assert "NVML is open until '%gpu watch off'" in shown
    calls = "from tests.virtual_gpu import World; calls = World.current().calls"
    watched.run(calls)
    opened = "calls('nvmlInitWithFlags') - calls('nvmlShutdown')"
    assert watched.value(opened) == 1
    watched.run("%gpu watch off")
    assert watched.value(opened) == 0


def test_only_what_is_shown_is_asked(virtual_gpu: Any, run_cell: Callable[..., Any]) -> None:
    run_cell("%gpumem")
    assert virtual_gpu.calls("nvmlDeviceGetMemoryInfo_v2")
    for figure in ("PowerUsage", "UtilizationRates", "Temperature"):
        assert virtual_gpu.calls(f"nvmlDeviceGet{figure}") == 0


@pytest.mark.parametrize("version", ["535.54", "535.98"])
def test_lists_of_other_drivers(kernel: Callable[..., Kernel], version: str) -> None:
    """Version 3 of an entry has 32 bytes there, or is missing."""
    others = [ExternalProcess(0, pid, memory * GIB) for pid, memory in ((4242, 1), (4243, 2))]
    k = kernel(Scenario(devices=1, processes=others, nvml=version))
    k.run("import gpumagic; (device,) = gpumagic.devices()")
    found = "[(each.pid, each.memory) for each in device.processes]"
    assert k.value(found) == [(4242, GIB), (4243, 2 * GIB)]
    assert k.value("device.memory_others") == 3 * GIB


CHILD = """
import subprocess, sys
code = "import torch; x = torch.ones(1, device='cuda'); print(flush=True); input()"
pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE)
child = subprocess.Popen([sys.executable, "-c", code], **pipes)
child.stdout.readline();
"""


def test_a_child_of_this_kernel_is_no_other(kernel: Callable[..., Kernel]) -> None:
    k = kernel(Scenario(devices=1))
    k.run(CHILD)
    try:
        k.run("import gpumagic; (device,) = gpumagic.devices()")
        assert k.value("[(p.own, p.child) for p in device.processes]") == [(False, True)]
        assert k.value("device.memory_others") == 0
        assert f"{k.value('child.pid')} (its child)" in k.run("%gpu -p").text
    finally:
        k.run("child.communicate();")


def test_an_old_package_of_the_same_name(
    child_environment: Callable[..., dict[str, str]], run_python: Callable[..., str], tmp_path: Path
) -> None:
    """A line names it: it has not what a table needs."""
    (tmp_path / "pynvml.py").write_text("def nvmlInit(): pass\n")
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    code = "import gpumagic; print(gpumagic.devices())"
    said = " ".join(run_python(code, {"PYTHONPATH": path}, fresh=True).split())
    assert f"{tmp_path / 'pynvml.py'} is an old package in the way of nvidia-ml-py" in said
    assert "pip uninstall pynvml nvidia-ml-py3" in said


def test_the_devices_of_a_lost_gpu_keep_their_names(virtual_gpu: Any) -> None:
    """Also though each look has a session of its own."""
    name = gpumagic.devices()[1].name
    virtual_gpu.lose(1)
    lost = gpumagic.devices()[1]
    assert (lost.name, lost.error is None) == (name, False)


def test_a_gpu_that_shares_the_hosts_memory(kernel: Callable[..., Kernel]) -> None:
    """NVML reports none of GB10's, whose memory is the host's: also for --min-free."""
    gb10 = GPU("NVIDIA GB10", 120 * GIB, (12, 1), unsupported=frozenset({"memory", "memory_v2"}))
    k = kernel(Scenario(devices=[gb10]))
    k.run("import gpumagic, psutil; (device,) = gpumagic.devices()")
    assert k.value("device.memory_total == psutil.virtual_memory().total") is True
    assert k.value("0 < device.memory_free < device.memory_total") is True
    assert "unchanged: this process sees 1 GPU" in k.run("%gpu auto --min-free 1M").text
