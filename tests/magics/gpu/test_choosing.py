"""``%gpu SPEC``: what a choice leads to, in fresh kernels with real torch on the virtual GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.magics.gpu.choices import COUNTING, SEES, TENSOR, choose
from tests.support.kernels import Kernel
from tests.virtual_gpu import GPU, Scenario


def test_off_before_torch_is_imported(fresh_kernel: Kernel) -> None:
    result = choose(fresh_kernel, "off", status="applied", cuda_initialized=False, devices=[])
    assert result["environment"]["CUDA_VISIBLE_DEVICES"] == "-1"
    assert "applied: this kernel sees no GPU" in result["shown"]
    assert result["stderr"] == ""
    fresh_kernel.run("import torch")
    assert fresh_kernel.value(SEES) == (False, 0)


def test_a_number_means_nvidia_smis_device(fresh_kernel: Kernel) -> None:
    result = choose(fresh_kernel, "2,0", status="applied")
    assert [(d["index"], d["ordinal"]) for d in result["devices"]] == [(2, 0), (0, 1)]
    fresh_kernel.run(TENSOR)
    uuids = fresh_kernel.value("[str(torch.cuda.get_device_properties(i).uuid) for i in (0, 1)]")
    assert [f"GPU-{uuid}" for uuid in uuids] == [d["uuid"] for d in result["devices"]]
    table = fresh_kernel.value(
        "[(d.index, d.ordinal, d.visible) for d in __import__('gpumagic').devices()]"
    )
    assert table == [(0, 1, True), (1, None, False), (2, 0, True), (3, None, False)]


def test_also_where_cudas_order_is_another(kernel: Callable[..., Kernel]) -> None:
    gpus = [GPU("Tesla T4", 15 * 2**30, (7, 5)), GPU("NVIDIA H100", 80 * 2**30, (9, 0))]
    mixed = kernel(Scenario(devices=gpus, cuda_order=[1, 0]))
    before = mixed.run("%gpu")
    assert "cuda:?" in before.text
    assert "fastest first" in before.text
    choose(mixed, "0", status="applied")
    mixed.run(TENSOR)
    assert mixed.value("torch.cuda.get_device_name(0)") == "Tesla T4"


def test_off_after_torch_is_imported_and_back_on(fresh_kernel: Kernel) -> None:
    fresh_kernel.run("import torch")
    choose(fresh_kernel, "off", status="applied")
    assert fresh_kernel.value(SEES) == (False, 0)
    choose(fresh_kernel, "on", status="applied", cuda_initialized=False)
    fresh_kernel.run(TENSOR)
    assert fresh_kernel.value(SEES) == (True, 4)


def too_late(kernel: Kernel, because: str) -> dict[str, Any]:
    """``%gpu off`` is too late, says why, and still holds for child processes."""
    result = choose(kernel, "off", status="too-late", cuda_initialized=True)
    assert len(result["devices"]) == 4
    assert "This kernel still sees 4 GPUs" in result["shown"]
    assert "see the choice: CUDA_VISIBLE_DEVICES=-1" in result["shown"]
    assert f"✗ Too late for 'off': {because}" in result["shown"]
    for way in ("%gpu off --restart", "%gpu off --soft"):
        assert f"┃ {way}  " in result["shown"]
    warning = "the choice 'off' is not in effect in this process: see above"
    assert result["stderr"] == f"%gpu:1: GpuMagicWarning: {warning}\n"
    assert result["shown"].lower().replace("-", " ").count("too late") == 1
    assert result["shown"].count("CUDA_VISIBLE_DEVICES") == 1
    assert f"Too late for 'off': {because}" in kernel.run("%gpu off -q").stderr
    assert kernel.value("__import__('torch').empty(1, device='cuda').is_cuda") is True
    child = kernel.run("!echo $CUDA_VISIBLE_DEVICES")
    # A shell complains in its first line of a locale that is not installed.
    assert child.stdout.strip().splitlines()[-1] == "-1"
    return result


@pytest.mark.parametrize(
    ("code", "because"),
    [
        (TENSOR, "torch has initialised CUDA"),
        (
            "import torch; torch.ones(2, requires_grad=True).sum().backward()\n"
            "assert not torch.cuda.is_initialized()",
            "CUDA is already initialised, although torch.cuda.is_initialized() is False",
        ),
        (
            "import ctypes; driver = ctypes.CDLL('libcuda.so.1'); assert driver.cuInit(0) == 0",
            "a library other than torch has initialised CUDA",
        ),
    ],
    ids=["a tensor", "a backward pass on the CPU", "another library"],
)
def test_too_late_after(fresh_kernel: Kernel, code: str, because: str) -> None:
    fresh_kernel.run(code)
    too_late(fresh_kernel, because)


def test_too_late_after_is_available_without_the_extension(kernel: Callable[..., Kernel]) -> None:
    late = kernel(load=False)
    late.run("import torch; assert torch.cuda.is_available()")
    late.run("%load_ext gpumagic")
    too_late(late, "CUDA is already initialised, although torch.cuda.is_initialized() is False")


def test_what_is_already_so_is_not_too_late(fresh_kernel: Kernel) -> None:
    fresh_kernel.run(TENSOR)
    choose(fresh_kernel, "on", status="unchanged")
    choose(fresh_kernel, "0-3", status="applied", cuda_initialized=True)
    choose(fresh_kernel, "3,2,1,0", status="too-late")


def test_off_then_on_after_cuda_failed_while_hidden(kernel: Callable[..., Kernel]) -> None:
    trapped = kernel(load=False, env={"CUDA_VISIBLE_DEVICES": ""})
    trapped.run("import torch; assert not torch.cuda.is_available()")
    trapped.run("%load_ext gpumagic")
    result = choose(trapped, "1", status="too-late", devices=[])
    assert "CUDA failed to start while all GPUs were hidden" in result["shown"]
    with pytest.raises(AssertionError, match="RuntimeError"):
        trapped.run(TENSOR)
    # It stays so, also when the mask no longer hides everything.
    choose(trapped, "2", status="too-late")


@pytest.mark.parametrize(
    "code", [TENSOR, "import torch; torch.ones(2, requires_grad=True).sum().backward()"]
)
def test_no_choice_is_applied_after_cuda_failed_to_start(
    kernel: Callable[..., Kernel], code: str
) -> None:
    broken = kernel(Scenario(devices=2, faults={"cuInit": 999}))
    broken.run(code, raising=False)
    broken.run(TENSOR, raising=False)
    result = choose(broken, "1", status="too-late", devices=[])
    assert "Too late for '1': CUDA has failed to start" in result["shown"]
    assert "--soft" not in result["shown"]  # it would have nothing to choose from
    assert "hidden" not in result["stderr"]
    assert "CUDA has failed in this process" in broken.run("%gpu").text


def test_an_error_that_names_cuda_is_no_failure_to_start(kernel: Callable[..., Kernel]) -> None:
    sound = kernel()
    sound.run("__import__('os').environ['CUDA_VISIBLE_DEVICES']", raising=False)
    choose(sound, "2", status="applied")  # torch is not even imported
    sound.run("import torch\nraise RuntimeError('CUDA error: something')", raising=False)
    choose(sound, "1", status="applied")
    sound.run(TENSOR)
    assert sound.value("torch.cuda.device_count()") == 1


@pytest.mark.parametrize("cell", ["%gpu 1", "%%gpu 1\nx = 1"])
def test_a_choice_whose_verification_is_broken_off_is_not_made(
    fresh_kernel: Kernel, cell: str
) -> None:
    """It may take long: a fork of the process does it, or a child with the driver."""
    fresh_kernel.run(
        "from gpumagic.selection import apply\n"
        "def verify(*_): raise KeyboardInterrupt\n"
        "apply.verify = verify"
    )
    reply = fresh_kernel.run(cell, raising=False)
    assert reply.status == "error"  # what is queued behind does not run
    if cell.startswith("%%"):
        assert reply.error["ename"] == "KeyboardInterrupt"
    else:
        assert reply.stderr == "UsageError: interrupted; nothing was changed\n"
    assert fresh_kernel.value("__import__('os').environ.get('CUDA_VISIBLE_DEVICES')") is None


def test_a_choice_that_is_broken_off_lifts_no_gate(kernel: Callable[..., Kernel]) -> None:
    k = kernel()
    k.run("import torch\n%gpu off --soft -q")
    assert k.value("torch.cuda.is_available()") is False
    k.run("from gpumagic.selection import apply\ndef verify(*_): raise KeyboardInterrupt")
    k.run("apply.verify = verify")
    reply = k.run("%gpu on", raising=False)
    assert reply.stderr == "UsageError: interrupted; nothing was changed\n"
    assert k.value("torch.cuda.is_available()") is False


def test_a_failure_while_all_was_hidden_is_in_the_table(kernel: Callable[..., Kernel]) -> None:
    trapped = kernel(load=False, env={"CUDA_VISIBLE_DEVICES": ""})
    trapped.run("import os, torch; assert not torch.cuda.is_available()")
    trapped.run("%load_ext gpumagic\n" + COUNTING)
    trapped.run("%gpu -q")
    assert trapped.value("len(_asked)") == 0
    trapped.run("del os.environ['CUDA_VISIBLE_DEVICES']")
    for _ in range(2):
        shown = trapped.run("%gpu").text
        assert "This kernel sees none of 4 GPUs" in shown
        assert "CUDA has failed in this process, which is final" in shown
    assert trapped.value("len(_asked)") == 1


def test_reset_is_what_the_kernel_was_started_with(kernel: Callable[..., Kernel]) -> None:
    started = kernel(env={"CUDA_VISIBLE_DEVICES": "1,3"})
    started.run("import os; os.environ['CUDA_VISIBLE_DEVICES'] = '0'")
    choose(started, "off", status="applied")
    result = choose(started, "reset", status="applied")
    assert result["environment"]["CUDA_VISIBLE_DEVICES"] == "1,3"
    assert [d["index"] for d in result["devices"]] == [1, 3]


def test_auto_keeps_to_what_a_scheduler_gave(kernel: Callable[..., Kernel]) -> None:
    job = kernel(env={"CUDA_VISIBLE_DEVICES": "1,3"})
    result = choose(job, "auto", status="applied")
    assert [d["index"] for d in result["devices"]] == [1]
    reply = job.run("%gpu auto 3", raising=False)
    assert "3 GPUs are requested" in reply.shown


UNEQUAL = [GPU("Tesla T4", 15 * 2**30, (7, 5)), GPU("NVIDIA H100", 80 * 2**30, (9, 0))]


def test_where_a_scheduler_counts_as_cuda_does_is_not_guessed(
    kernel: Callable[..., Kernel],
) -> None:
    """CUDA's number 1 is nvidia-smi's 0 here; only the driver can tell, once it has started."""
    job = kernel(
        Scenario(devices=UNEQUAL, cuda_order=[1, 0]),
        env={"CUDA_VISIBLE_DEVICES": "1", "CUDA_DEVICE_ORDER": None},
    )
    reply = job.run("%gpu auto", raising=False)
    assert reply.stderr.startswith(
        "UsageError: the GPUs that this kernel was started with are not known"
    )
    assert reply.stderr.count("\n") == 1
    choose(job, "off", status="applied")
    result = choose(job, "reset", status="applied", devices=[], devices_known=False)
    assert "applied: what this kernel sees is not known" in result["shown"]
    job.run(TENSOR)
    assert job.value("torch.cuda.get_device_name(0)") == "Tesla T4"
    choose(job, "reset", status="unchanged")


def test_waiting_for_a_gpu_is_interruptible_and_changes_nothing(
    kernel: Callable[..., Kernel],
) -> None:
    busy = kernel(Scenario(devices=[GPU(utilization=90), GPU(utilization=80)]))
    message = busy.submit("%gpu auto --idle --wait 60")
    published = busy.client.get_iopub_msg(timeout=300)
    while "waiting for GPUs: 0 of 1" not in str(published["content"]):
        published = busy.client.get_iopub_msg(timeout=300)
    busy.interrupt()
    reply = busy.wait(message)
    assert reply.status == "error"
    assert reply.stderr == "UsageError: interrupted; nothing was changed\n"
    chosen = "'CUDA_VISIBLE_DEVICES' in __import__('os').environ"
    assert busy.value(chosen) is False


def test_what_does_not_fit_is_named_after_waiting(kernel: Callable[..., Kernel]) -> None:
    busy = kernel(Scenario(devices=[GPU(utilization=90), GPU(utilization=0)]))
    reply = busy.run("%gpu auto 2 --idle --wait 0.2", raising=False)
    assert reply.stderr == (
        "UsageError: only 1 of 2 GPUs fit, 2 requested (GPU 0: 90 % utilised)\n"
    )


def test_what_can_never_fit_is_not_waited_for(fresh_kernel: Kernel) -> None:
    reply = fresh_kernel.run("%gpu auto --min-free 1TiB --wait 100000", raising=False, timeout=300)
    assert reply.stderr.startswith("UsageError: no GPU fits, 1 requested (GPU 0: only 79.5 GiB")


def test_an_environment_that_was_replaced(fresh_kernel: Kernel) -> None:
    """What is written to a plain dictionary reaches neither CUDA nor children."""
    fresh_kernel.run("import os; os.environ = dict(os.environ)")
    reply = fresh_kernel.run("%gpu 1", raising=False)
    assert reply.stderr.startswith("UsageError: os.environ was replaced: what is written to it")
    assert fresh_kernel.value("os.environ.get('CUDA_VISIBLE_DEVICES')") is None


def test_too_late_changes_no_figure(fresh_kernel: Kernel) -> None:
    """torch 2.6 counts devices by the variable at its first count."""
    fresh_kernel.run(TENSOR)
    choose(fresh_kernel, "off", status="too-late")
    assert fresh_kernel.value("torch.cuda.device_count()") == 4
    fresh_kernel.run(
        "import gpumagic\nwith gpumagic.cudatime() as timed: y = torch.ones(5, device='cuda')"
    )
    assert fresh_kernel.value("timed.gpu is not None")
    assert fresh_kernel.value("gpumagic.gpumem().devices[0].allocated > 0")
