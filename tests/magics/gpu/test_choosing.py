"""``%gpu SPEC``: what a choice leads to, in fresh kernels with real torch on the virtual GPU."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
from IPython.core.error import UsageError

from tests.magics.gpu.choices import COUNTING, SEES, TENSOR, choose
from tests.support.kernels import Kernel
from tests.virtual_gpu import GPU, Scenario


def test_a_number_means_nvidia_smis_device(fresh_kernel: Kernel) -> None:
    result = choose(fresh_kernel, "2,0", status="applied")
    assert [(d["index"], d["ordinal"]) for d in result["devices"]] == [(2, 0), (0, 1)]
    fresh_kernel.run(TENSOR)
    uuids = fresh_kernel.value("[str(torch.cuda.get_device_properties(i).uuid) for i in (0, 1)]")
    assert [f"GPU-{uuid}" for uuid in uuids] == [d["uuid"] for d in result["devices"]]
    # As vLLM, DeepSpeed and many scripts read it; with the order that these numbers have.
    read = "[int(x) for x in __import__('os').environ['CUDA_VISIBLE_DEVICES'].split(',')]"
    assert fresh_kernel.value(read) == [2, 0]
    assert "CUDA_VISIBLE_DEVICES=2,0, CUDA_DEVICE_ORDER=PCI_BUS_ID" in result["shown"]
    table = fresh_kernel.value(
        "[(d.index, d.ordinal, d.visible) for d in __import__('gpumagic').devices()]"
    )
    assert table == [(0, 1, True), (1, None, False), (2, 0, True), (3, None, False)]


#: CUDA counts the fastest first, nvidia-smi by the bus.
UNEQUAL = Scenario(
    devices=[GPU("Tesla T4", 15 * 2**30, (7, 5)), GPU("NVIDIA H100", 80 * 2**30, (9, 0))],
    cuda_order=[1, 0],
)


def test_also_where_cudas_order_is_another(kernel: Callable[..., Kernel]) -> None:
    mixed = kernel(UNEQUAL)
    before = mixed.run("%gpu")
    assert "cuda:?" in before.text
    assert "fastest first" in before.text
    order = "__import__('os').environ.get('CUDA_DEVICE_ORDER')"
    own = mixed.value(order)
    choose(mixed, "1", status="applied")
    assert mixed.value(order) == "PCI_BUS_ID"
    choose(mixed, "on", status="applied")
    assert mixed.value(order) == own  # what a choice does not write is the user's
    choose(mixed, "0", status="applied")
    mixed.run(TENSOR)
    assert mixed.value("torch.cuda.get_device_name(0)") == "Tesla T4"


def test_uuids_where_a_gpu_does_not_answer(kernel: Callable[..., Kernel]) -> None:
    """CUDA may not count it, and then counts the others otherwise than nvidia-smi does."""
    broken = kernel(Scenario(devices=3, lost=[0]))
    result = choose(broken, "2", status="applied")
    assert result["environment"]["CUDA_VISIBLE_DEVICES"] == result["devices"][0]["uuid"]


def test_off_before_torch_is_imported_and_after(fresh_kernel: Kernel) -> None:
    result = choose(fresh_kernel, "off", status="applied", cuda_initialized=False, devices=[])
    assert result["environment"]["CUDA_VISIBLE_DEVICES"] == "-1"
    assert "applied: this process sees no GPU" in result["shown"]
    assert result["stderr"] == ""
    fresh_kernel.run("import torch")
    assert fresh_kernel.value(SEES) == (False, 0)
    for spec in ("on", "off", "on"):
        choose(fresh_kernel, spec, status="applied", cuda_initialized=False)
        assert fresh_kernel.value(SEES) == ((True, 4) if spec == "on" else (False, 0))


LOAD = "%load_ext gpumagic"
#: torch 2.6 sets another one, CUDA_MODULE_LOADING.
VARIABLES = (
    "{n: v for n, v in __import__('os').environ.items()"
    " if n in ('CUDA_VISIBLE_DEVICES', 'CUDA_DEVICE_ORDER')}"
)


@pytest.mark.parametrize(
    ("cells", "because", "of_children"),
    [
        ((LOAD, TENSOR), "torch has initialised CUDA", "-1"),
        (
            (LOAD, "import torch; torch.ones(2, requires_grad=True).sum().backward()"),
            "CUDA is already initialised, although torch.cuda.is_initialized() is False",
            "",
        ),
        (
            ("import torch; assert torch.cuda.is_available()", LOAD),
            "CUDA is already initialised, although torch.cuda.is_initialized() is False",
            "",
        ),
        (
            (LOAD, "import ctypes; assert ctypes.CDLL('libcuda.so.1').cuInit(0) == 0"),
            "a library other than torch has initialised CUDA",
            "",
        ),
    ],
    ids=["a tensor", "a backward pass on the CPU", "a question before loading", "another library"],
)
def test_too_late_after(
    kernel: Callable[..., Kernel], cells: tuple[str, ...], because: str, of_children: str
) -> None:
    """It says why, and torch says afterwards what it said before.

    It counts by the variable until it has initialised CUDA itself: only then is that set, for child
    processes.
    """
    late = kernel(load=False)
    for cell in cells:
        late.run(cell)
    result = choose(late, "off", status="too-late", cuda_initialized=True)
    assert len(result["devices"]) == 4
    assert "This process still sees 4 GPUs" in result["shown"]
    variable = f"={of_children}" if of_children else " is not set"
    assert f"New child processes: CUDA_VISIBLE_DEVICES{variable}" in result["shown"]
    assert f"✗ Too late for 'off': {because}" in result["shown"]
    for way in ("%gpu off --restart", "%gpu off --soft"):
        assert f"┃ {way}  " in result["shown"]
    warning = "the choice 'off' is not in effect in this process: see above"
    assert result["stderr"] == f"%gpu:1: GpuMagicWarning: {warning}\n"
    assert f"Too late for 'off': {because}" in late.run("%gpu off -q").stderr
    child = late.run("!echo $CUDA_VISIBLE_DEVICES.")
    # A shell complains in its first line of a locale that is not installed.
    assert child.stdout.strip().splitlines()[-1] == f"{of_children}."
    late.run("import torch")
    assert late.value(SEES) == (True, 4)
    assert late.value("torch.empty(1, device='cuda').is_cuda") is True


def test_the_same_line_leaves_the_same_state(fresh_kernel: Kernel) -> None:
    """A notebook is run a second time: nothing is red, and child processes get the same GPUs."""
    k = fresh_kernel
    choose(k, "0-3", status="unchanged", cuda_initialized=False)  # it has these
    assert k.value(VARIABLES) == {}
    for line in ("auto 2 --idle", "auto 2 --restart"):
        first = choose(k, line, status="applied", cuda_initialized=False)
        chosen, variables = first["devices"], k.value(VARIABLES)
        k.run(f"{TENSOR}; y = torch.ones(2**24, device='cuda')")
        again = choose(k, line, status="unchanged", cuda_initialized=True)
        assert [d["uuid"] for d in again["devices"]] == [d["uuid"] for d in chosen]
        assert k.value(VARIABLES) == variables
        late = choose(k, "auto", status="too-late")
        assert [d["uuid"] for d in late["devices"]] == [d["uuid"] for d in chosen]
        choose(k, line, status="applied")  # for child processes, again
        assert k.value(VARIABLES) == variables
        k.run("%gpu on --restart --keep none -q")
    choose(k, "auto 2", status="applied")
    k.run(f"{TENSOR}\n%gpu restart")  # what comes back starts CUDA
    choose(k, "auto 2", status="unchanged", cuda_initialized=True)


def test_what_auto_chose_before_must_meet_what_is_wanted_now(
    kernel: Callable[..., Kernel],
) -> None:
    """Of what this process uses itself it has enough."""
    k = kernel(Scenario(devices=[GPU(memory=8 * 2**30), GPU(memory=16 * 2**30)]))
    choose(k, "auto --min-free 4GiB", status="applied")
    k.run("import torch; x = torch.empty(14 * 2**30, dtype=torch.uint8, device='cuda')")
    for wants in ("4GiB", "6GiB", "15GiB"):
        choose(k, f"auto --min-free {wants}", status="unchanged")
    choose(k, "auto --min-free 15GiB --restart", status="unchanged")
    refused = k.run("%gpu auto --min-free 100GiB", raising=False).stderr
    assert "no GPU fits, 1 requested" in refused


def test_what_is_already_so_is_not_too_late(fresh_kernel: Kernel) -> None:
    """What is too late changes no figure: torch 2.6 counts by the variable at its first count."""
    k = fresh_kernel
    k.run(TENSOR)
    choose(k, "on", status="unchanged")
    choose(k, "0-3", status="unchanged", cuda_initialized=True)
    for spec in ("3,2,1,0", "off"):
        choose(k, spec, status="too-late")
    assert k.value("torch.cuda.device_count()") == 4
    choose(k, "0-3", status="applied", cuda_initialized=True)  # for child processes, again
    k.run("import gpumagic\nwith gpumagic.cudatime() as timed: y = torch.ones(5, device='cuda')")
    assert k.value("(timed.gpu is None, gpumagic.gpumem().devices[0].allocated)") == (False, 1024)


def test_cuda_that_fails_under_off_is_said_by_all(kernel: Callable[..., Kernel]) -> None:
    """The table, the doctor and the next choice agree, and what they say to type helps."""
    k = kernel()
    choose(k, "off", status="applied")
    k.run("import torch; kept = torch.ones(2)")
    assert "CUDA is not initialised, so this can still be changed" in k.run("%gpu").text
    for cell in ("torch.ones(3, device='cuda')", "torch.ones(3, device='cuda')"):
        failed = k.run(cell, raising=False).shown
        assert "To do: %gpu on --restart" in " ".join(failed.split())
        assert "CUDA has failed in this process, which is final" in k.run("%gpu").text
    doctor = " ".join(k.run("%gpu doctor").text.split())
    assert "can still be selected" not in doctor
    assert "%gpu on --restart" in doctor
    assert "starts it, or a backward pass on the CPU), and does not start again" in doctor
    choose(k, "on", status="too-late")
    k.run("%gpu on --restart")
    assert k.value("(kept.cuda().numel(), torch.cuda.is_available())") == (2, True)


def test_cuda_that_failed_while_all_was_hidden(kernel: Callable[..., Kernel]) -> None:
    """It is asked once; the table says so, and it stays so when the mask hides no more."""
    trapped = kernel(load=False, env={"CUDA_VISIBLE_DEVICES": ""})
    trapped.run("import os, torch; assert not torch.cuda.is_available()")
    trapped.run("%load_ext gpumagic\n" + COUNTING)
    assert "CUDA has failed in this process, which is final" in trapped.run("%gpu").text
    trapped.run("del os.environ['CUDA_VISIBLE_DEVICES']")
    for _ in range(2):
        shown = trapped.run("%gpu").text
        assert "This process sees none of 4 GPUs" in shown
        assert "CUDA has failed in this process, which is final" in shown
    assert trapped.value("len(_asked)") == 1
    for spec in ("1", "2"):
        result = choose(trapped, spec, status="too-late", devices=[])
        assert "CUDA failed to start while all GPUs were hidden" in result["shown"]
    with pytest.raises(AssertionError, match="RuntimeError"):
        trapped.run(TENSOR)


@pytest.mark.parametrize(
    ("code", "says"),
    [
        (TENSOR, "No choice helps: CUDA does not start: the driver could not be started"),
        (
            "import torch; torch.ones(2, requires_grad=True).sum().backward()",
            "Too late for '1': CUDA has failed to start, and does not start again",
        ),
    ],
)
def test_no_choice_is_applied_after_cuda_failed_to_start(
    kernel: Callable[..., Kernel], code: str, says: str
) -> None:
    broken = kernel(Scenario(devices=2, faults={"cuInit": 999}))
    broken.run(code, raising=False)
    broken.run(TENSOR, raising=False)
    result = choose(broken, "1", status="too-late", devices=[])
    assert says in result["shown"]
    assert "--soft" not in result["shown"]  # it would have nothing to choose from
    assert "hidden" not in result["stderr"]
    assert "CUDA has failed in this process" in broken.run("%gpu").text


def test_a_choice_that_is_broken_off_is_not_made_and_lifts_no_gate(fresh_kernel: Kernel) -> None:
    """Its verification may take long: a fork of the process does it, or a child with the driver."""
    k = fresh_kernel
    k.run("import torch, sys\nfrom gpumagic.selection import apply\nverify = apply.verify")
    k.run("inner = sys.modules['gpumagic.selection.in_effect']")
    k.run("def interrupted(*_, **__): raise KeyboardInterrupt")
    k.run("apply.verify = interrupted")
    # What is queued behind either does not run.
    assert k.run("%%gpu 1\nx = 1", raising=False).error["ename"] == "KeyboardInterrupt"
    k.run("torch.cuda.init(); apply.verify = verify\n%gpu off --soft -q")
    k.run("apply.verify = inner.verify = interrupted")
    for line in ("%gpu 1", "%gpu on"):
        reply = k.run(line, raising=False)
        assert reply.status == "error"
        assert reply.stderr == "UsageError: interrupted; nothing was changed\n"
    assert k.value("__import__('os').environ.get('CUDA_VISIBLE_DEVICES')") is None
    assert k.value("torch.cuda.is_available()") is False


def test_what_the_kernel_was_started_with(kernel: Callable[..., Kernel]) -> None:
    """``reset`` brings it back, and ``auto`` keeps to it: a scheduler may have given it."""
    job = kernel(env={"CUDA_VISIBLE_DEVICES": "1,3"})
    job.run("import os; os.environ['CUDA_VISIBLE_DEVICES'] = '0'")
    choose(job, "off", status="applied")
    result = choose(job, "reset", status="applied")
    assert result["environment"]["CUDA_VISIBLE_DEVICES"] == "1,3"
    assert [d["index"] for d in result["devices"]] == [1, 3]
    assert [d["index"] for d in choose(job, "auto", status="applied")["devices"]] == [1]
    refused = job.run("%gpu auto 3", raising=False).shown
    assert "3 GPUs are requested, but this process was started with GPUs 1, 3 alone" in refused


def test_where_a_scheduler_counts_as_cuda_does_is_not_guessed(
    kernel: Callable[..., Kernel],
) -> None:
    """CUDA's number 1 is nvidia-smi's 0 here; only the driver can tell, once it has started."""
    job = kernel(UNEQUAL, env={"CUDA_VISIBLE_DEVICES": "1", "CUDA_DEVICE_ORDER": None})
    reply = job.run("%gpu auto", raising=False)
    assert reply.stderr.startswith(
        "UsageError: the GPUs that this process was started with are not known"
    )
    assert reply.stderr.count("\n") == 1
    choose(job, "off", status="applied")
    result = choose(job, "reset", status="applied", cuda_initialized=False)
    assert [each["name"] for each in result["devices"]] == ["Tesla T4"]  # a child has asked
    job.run(TENSOR)
    assert job.value("torch.cuda.get_device_name(0)") == "Tesla T4"
    choose(job, "reset", status="unchanged")


@pytest.mark.parametrize(
    ("code", "because"),
    [
        (802, "CUDA does not start: NVIDIA's Fabric Manager"),
        (100, "CUDA shows a process with this choice no GPU; for the reason: %gpu doctor"),
    ],
)
def test_applied_is_what_cuda_did_in_a_child(
    kernel: Callable[..., Kernel], code: int, because: str
) -> None:
    """Where it does not do it there, nothing is changed; what is hidden can be shown again."""
    broken = kernel(Scenario(faults={"cuInit": code}))
    for spec in ("0", "auto"):
        reply = broken.run(f"%gpu {spec}", raising=False)
        assert reply.stderr.startswith(f"UsageError: '{spec}' cannot be chosen: {because}")
        assert reply.stderr.count("\n") == 1
        assert broken.value("'CUDA_VISIBLE_DEVICES' in __import__('os').environ") is False
    choose(broken, "off", status="applied")
    shown = choose(broken, "on", status="applied", devices=[], cuda_initialized=False)["shown"]
    assert "applied: this process sees no GPU" in shown
    assert because.partition(";")[0] in " ".join(shown.split())


def test_waiting_for_gpus(kernel: Callable[..., Kernel]) -> None:
    """Ctrl-C ends it and changes nothing; at its end what does not fit is named."""
    busy = kernel(Scenario(devices=[GPU(utilization=90), GPU(utilization=0)]))
    message = busy.submit("%gpu auto 2 --idle --wait 600")
    published = busy.client.get_iopub_msg(timeout=300)
    while "waiting for GPUs: only 1 of 2 GPUs fit, 2 requested (GPU 0: 90 %" not in str(
        published["content"]
    ):
        published = busy.client.get_iopub_msg(timeout=300)
    busy.interrupt()
    reply = busy.wait(message)
    assert reply.status == "error"
    assert reply.stderr == "UsageError: interrupted; nothing was changed\n"
    assert busy.value("'CUDA_VISIBLE_DEVICES' in __import__('os').environ") is False
    reply = busy.run("%gpu auto 2 --idle --wait 0.2", raising=False)
    assert "only 1 of 2 GPUs fit, 2 requested (GPU 0: 90 % utilised)" in reply.stderr
    assert "--wait SECONDS" in busy.run("%gpu auto 2 --idle", raising=False).stderr
    busy.run("import torch; torch.ones(1, device='cuda')")  # what is free later is too late now
    reply = busy.run("%gpu auto 2 --idle --wait 3600", raising=False)
    assert "not waited for, as CUDA has started here: add --restart" in reply.stderr


def test_an_environment_that_was_replaced(
    run_cell: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is written to a plain dictionary reaches neither CUDA nor children."""
    before = dict(os.environ)
    with monkeypatch.context() as patch:
        patch.setattr(os, "environ", dict(os.environ))
        with pytest.raises(UsageError, match=r"^os\.environ was replaced: what is written to it"):
            run_cell("%gpu 1")
        assert os.environ == before
