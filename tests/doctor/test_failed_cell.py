"""The line below the traceback of a cell that failed: cause and command."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from gpumagic.doctor import failed_cell
from gpumagic.results.base import Explanation
from tests.support.kernels import Kernel
from tests.support.shells import Ran
from tests.virtual_gpu import GPU, ExternalProcess, Scenario, World


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("CUDA error: device-side assert triggered", "Later CUDA calls fail too"),
        ("CUDA error: an illegal memory access was encountered", "CUDA_LAUNCH_BLOCKING=1"),
        ("CUDA error: invalid device ordinal", "cuda:0 (GPU 0), cuda:1 (GPU 1)"),
        ("CUDA error: something new", "More: %gpu doctor."),
        ("The NVIDIA driver on your system is too old (found version 12000).", "driver"),
        ("Cannot re-initialize CUDA in forked subprocess. To use", "spawn"),
        ("CUDA has been initialized before the `notebook_launcher` could", "To do: %gpu restart;"),
        ("Torch not compiled with CUDA enabled", "built without CUDA"),
        ("CUDA error: out of memory", "of the GPU, or of the host for pinned memory"),
        ("the provided PTX was compiled with an unsupported toolchain.", "a newer CUDA than the"),
    ],
)
def test_a_failure_is_explained_in_one_line(
    run_cell: Callable[..., Ran], text: str, expected: str
) -> None:
    ran = run_cell(f"raise RuntimeError({text!r})", raising=False)
    assert isinstance(ran.error, RuntimeError)
    assert ran.text.startswith("gpumagic: ")
    assert expected in ran.text
    assert "\n" not in ran.text
    assert "opacity" in ran.html
    assert ran.stderr == ""


def test_a_cause_further_back_is_explained(run_cell: Callable[..., Ran]) -> None:
    wrapped = (
        "try:\n    raise RuntimeError('CUDA error: misaligned address')\n"
        "except RuntimeError as error:\n    raise ValueError('mine') from error"
    )
    assert "a GPU kernel accessed a misaligned address" in run_cell(wrapped, raising=False).text


@pytest.mark.parametrize("source", ["1 / 0", "1 +", "%gpu 99", "'CUDA error: x'"])
def test_other_errors_get_no_line(run_cell: Callable[..., Ran], source: str) -> None:
    assert run_cell(source, raising=False).text == ""


def test_a_real_missing_kernel_image(run_cell: Callable[..., Ran], virtual_gpu: World) -> None:
    """The error comes from torch itself; its class is torch.AcceleratorError where there is one."""
    run_cell("import torch\nx = torch.ones(2, device='cuda')")
    for launch in ("cudaLaunchKernel*", "__cudaLaunchKernel*"):  # as CUDA 12 and 13 call it
        virtual_gpu.fault(launch, 209)
    ran = run_cell("x + 1", raising=False)
    assert "no kernel image is available" in str(ran.error)
    assert ran.text.startswith("gpumagic: torch has kernels for this GPU")


def test_an_exceptions_own_code_does_not_run() -> None:
    """Only its arguments are read, also where these are of a class of the user."""
    ran: list[str] = []

    class Text(str):
        def __str__(self) -> str:
            ran.append("Text.__str__")
            return "mine"

        __repr__ = __str__

    class HostileError(RuntimeError):
        def __str__(self) -> str:
            ran.append("__str__")
            raise ValueError("mine")

        __repr__ = __str__

        def __getattribute__(self, name: str) -> Any:
            ran.append(name)
            raise ValueError("mine")

    text = Text("Caught AcceleratorError:\nCUDA error: misaligned address")
    for error in (HostileError(text), HostileError(7, text), KeyError(text)):
        found = failed_cell.explain(error)
        assert isinstance(found, Explanation)
        assert "a GPU kernel accessed a misaligned address" in str(found)
    assert failed_cell.explain(HostileError(HostileError("CUDA error: something"))) is None
    assert not ran


def test_in_a_kernel(kernel: Callable[..., Kernel]) -> None:
    """On a machine whose GPU is too old; the line comes after the traceback."""
    fresh = kernel(Scenario(devices=[GPU(name="GTX 680", compute_capability=(3, 0))]))
    fresh.run("import torch\nx = torch.ones(1, device='cuda')")
    error = "CUDA error: no kernel image is available for execution"
    failed = fresh.run(f"raise RuntimeError({error!r})", raising=False)
    assert [output["output_type"] for output in failed.outputs] == ["error", "display_data"]
    assert failed.text.startswith("gpumagic: this torch has no kernels for GPU 0: compute")
    assert "sm_30" in failed.text
    loader = (
        "class Data(torch.utils.data.Dataset):\n"
        "    def __len__(self): return 1\n"
        "    def __getitem__(self, i): return torch.ones(1, device='cuda')\n"
        "next(iter(torch.utils.data.DataLoader(Data(), num_workers=1, "
        "multiprocessing_context='fork')))"
    )
    forked = fresh.run(loader, raising=False)
    assert "Cannot re-initialize CUDA in forked subprocess" in forked.shown
    assert "(CUDA was initialised while cell [2] ran `x = torch.ones" in forked.text
    report = fresh.run("%gpu doctor")
    assert "CUDA was initialised while cell [2]" in report.html
    assert report.text.startswith("torch cannot use a GPU here, because this torch has no kernels")
    fresh.run("%unload_ext gpumagic")
    assert fresh.run("raise RuntimeError('CUDA error: x')", raising=False).text == ""


#: By the machine, what fails there and what the line says.
STARTS = {
    802: "start nvidia-fabricmanager of exactly the driver's version",
    803: "after an update of the driver, reboot",
    804: "install a newer driver on the host, use an older image",
    805: "start nvidia-cuda-mps-control -d as the same user",
    999: "sudo rmmod nvidia_uvm && sudo modprobe nvidia_uvm; else reboot",
}


@pytest.mark.parametrize("code", STARTS)
def test_a_start_that_no_restart_of_the_kernel_mends(
    kernel: Callable[..., Kernel], code: int
) -> None:
    """Below the cell, by the doctor and by a choice: what it is, and what really helps."""
    broken = kernel(Scenario(faults={"cuInit": code}))
    failed = broken.run("import torch; x = torch.ones(1, device='cuda')", raising=False)
    assert failed.error is not None
    for shown in (
        failed.text,
        broken.run("%gpu doctor").text,
        broken.run("%gpu 0", raising=False).shown,
        broken.run("%gpu", raising=False).shown,
    ):
        said = " ".join(re.sub(r"[┃│]", " ", shown).split())
        assert "--restart" not in said
        assert "is lost" not in said
    said = " ".join(failed.text.split())
    assert STARTS[code] in said
    assert f"error {code}" in said
    verdict = broken.run("%gpu doctor").text.splitlines()[0]
    assert verdict.startswith("torch cannot use a GPU here, because CUDA does not start: ")
    assert f"(error {code})" in verdict


FULL = Scenario([GPU(), GPU()], processes=[ExternalProcess(0, 4242, 79 * 2**30 + 200 * 2**20)])
EXCLUSIVE = Scenario([GPU(compute_mode="exclusive")], processes=[ExternalProcess(0, 4242, 2**30)])


@pytest.mark.parametrize(
    ("scenario", "said"),
    [
        (FULL, "others have 79.2 GiB (%gpu -p). To do: choose another one: %gpu auto"),
        (EXCLUSIVE, "another process uses the GPU exclusively"),
    ],
)
def test_a_gpu_that_others_have(
    kernel: Callable[..., Kernel], scenario: Scenario, said: str
) -> None:
    taken = kernel(scenario)
    failed = taken.run("import torch; x = torch.ones(1, device='cuda')", raising=False)
    assert said in failed.text
    assert "%gpu auto --restart" in failed.text


#: What torch cannot use a GPU for, on which machine, and what the line says.
NO_GPU = {
    "hidden": (
        Scenario(),
        {"CUDA_VISIBLE_DEVICES": "-1"},
        "hidden from this process: CUDA_VISIBLE_DEVICES=-1. To do: %gpu on --restart",
    ),
    "no driver": (
        Scenario(devices=2, driver=False, container=True),
        {},
        "580.95.05 is loaded. To do: start the container with its GPUs (docker run --gpus all)",
    ),
    # torch's runtime returns 35 (too old) for it if it is built for CUDA 13, else 100.
    "driver not loaded": (
        Scenario(devices=0, faults={"nvmlInit*": 9}, cuda_version=12020),
        {},
        "the NVIDIA driver's kernel module is loaded but does not respond",
    ),
}


@pytest.mark.parametrize("machine", NO_GPU)
def test_why_there_is_no_gpu_is_named(kernel: Callable[..., Kernel], machine: str) -> None:
    scenario, env, expected = NO_GPU[machine]
    fresh = kernel(scenario, env=env)
    failed = fresh.run("import torch\ntorch.ones(1, device='cuda')", raising=False)
    assert failed.text.startswith("gpumagic: ")
    assert expected in failed.text


def test_a_start_that_failed_earlier_is_named_as_the_cause(kernel: Callable[..., Kernel]) -> None:
    fresh = kernel()
    fresh.run("%%gpu off -q\nimport torch\ntorch.ones(2, requires_grad=True).sum().backward()")
    failed = fresh.run("torch.ones(1, device='cuda')", raising=False)
    assert "not start again in this process. To do: %gpu on --restart" in failed.text


def test_what_stands_at_the_end_of_a_long_text_is_read() -> None:
    """As in the error of a DataLoader's worker, which is below its traceback."""
    error = RuntimeError("x\n" * 100_000 + "CUDA error: device-side assert triggered\n")
    assert "index out of range" in str(failed_cell.explain(error))
