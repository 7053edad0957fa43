"""What the magics say in a kernel with NVIDIA's driver and no device behind it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.kernels import Kernel

WHY = "the NVIDIA driver is not loaded, or a container was started without --gpus"
NO_GPU = f"This machine has no GPU that CUDA can use: {WHY}"
#: The doctor's verdict; which of them depends on what else this machine is.
BECAUSE = "torch cannot use a GPU here, because "
CAUSES = (
    "the NVIDIA driver's kernel module is not loaded.",
    "this container was started without its GPUs, or its host has not loaded the NVIDIA driver.",
)


def verdict(report: str) -> str:
    first = report.partition("\n")[0]
    assert first.startswith(BECAUSE), report
    return first.removeprefix(BECAUSE)


def findings(kernel: Kernel, status: str) -> dict[str, str]:
    """Return the evidence of the doctor's findings with this status, by subject."""
    found = f"f.subject: f.evidence for f in gpumagic.diagnose().findings if f.status == {status!r}"
    kernel.run("import gpumagic")
    shown: dict[str, str] = kernel.value(f"{{{found}}}")
    return shown


@pytest.fixture
def fresh(kernel: Callable[..., Kernel]) -> Kernel:
    return kernel()


def test_without_torch(fresh: Kernel) -> None:
    table = fresh.run("%gpu").text
    assert table.startswith(f"{NO_GPU}.")
    assert "can still be changed" not in table
    for spec in ("off", "on", "auto"):
        chosen = fresh.run(f"%gpu {spec}").text
        assert chosen.startswith("unchanged: this machine has no GPU that CUDA can use (the NVIDIA")
    refused = fresh.run("%gpu 0", raising=False).shown
    assert f"UsageError: {NO_GPU}" in refused
    assert fresh.value("__import__('os').environ.get('CUDA_VISIBLE_DEVICES')") is None
    timed = fresh.run("%%cudatime\n6 * 7")
    assert "no GPU time: torch is not imported" in timed.text
    assert timed.value == "42"
    assert fresh.run("%gpumem").text == f"No GPU memory to show: {WHY}"
    assert fresh.value("'torch' in __import__('sys').modules") is False


def test_with_torch(fresh: Kernel) -> None:
    """A start that fails, and what is said of it from then on."""
    timed = fresh.run("%%cudatime\nimport torch\ntotal = int(torch.ones(3).sum())")
    assert "no GPU time: this machine has no GPU" in timed.text
    assert fresh.value("total") == 3
    measured = fresh.run("%%gpumem\nx = torch.ones(3)").text
    assert measured == "GPU memory: not measured, this machine has no GPU"
    report = fresh.run("%gpu doctor").text
    assert verdict(report) in CAUSES
    assert "CUDA is not initialised" in str(findings(fresh, "ok"))
    failed = fresh.run("torch.ones(1, device='cuda')", raising=False)
    assert failed.error is not None
    assert any(cause in failed.text for cause in CAUSES)
    # Some torch remembers it, and NVIDIA's driver goes on saying that it was never initialised.
    assert fresh.run("%gpu").text.startswith(f"{NO_GPU}.")
    assert verdict(fresh.run("%gpu doctor").text) in CAUSES
    assert fresh.run("%gpu off").text.startswith("unchanged: this machine has no GPU")
    assert "no GPU time" in fresh.run("%cudatime x.sum()").text
    assert fresh.run("%gpumem").text == f"No GPU memory to show: {WHY}"


def test_a_runtime_that_failed_is_known(fresh: Kernel) -> None:
    """A backward pass on the CPU starts CUDA where torch can: with every GPU hidden, in vain."""
    fresh.run("%gpu off")
    fresh.run("import torch; torch.ones(2, requires_grad=True).sum().backward()")
    assert "unchanged: this machine has no GPU that CUDA can use" in fresh.run("%gpu on").text
    assert (
        fresh.value("__import__('gpumagic.cuda.driver').cuda.driver.state().initialized") is False
    )
