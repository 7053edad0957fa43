"""``%gpu off --soft``: the gate inside the process, in fresh kernels."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.kernels import Kernel

STATE = """
import torch
def state():
    cuda, C = torch.cuda, torch._C
    owners = {"cuda": cuda, "Stream": cuda.Stream, "C": C, "T": torch}
    return {(o, k): v for o, owner in owners.items() for k, v in vars(owner).items()}
"""


@pytest.fixture
def gated(kernel: Callable[..., Kernel]) -> Kernel:
    """A kernel that is gated, after CUDA was initialised."""
    started = kernel()
    started.run(STATE)
    started.run("old = torch.ones(1000, device='cuda')")
    started.run("before = state()")
    started.run("gate = %gpu off --soft -o")
    return started


def refused(kernel: Kernel, code: str) -> None:
    reply = kernel.run(code, raising=False)
    assert reply.error is not None, code
    assert reply.error["ename"] == "GateError", (code, reply.shown)
    assert "to lift that: %gpu on" in reply.error["evalue"]


def test_device_agnostic_code_goes_to_the_cpu_and_what_names_a_gpu_is_refused(
    gated: Kernel,
) -> None:
    assert gated.value("gate.status") == "gated"
    assert gated.value("(torch.cuda.is_available(), torch.cuda.device_count())") == (False, 0)
    assert gated.value("torch.accelerator.is_available()") is False
    assert gated.value("str(__import__('gpumagic').device())") == "cpu"
    code = "d = 'cuda' if torch.cuda.is_available() else 'cpu'; m = torch.nn.Linear(2, 2).to(d)"
    gated.run(code)
    assert gated.value("str(m.weight.device)") == "cpu"
    for new in NEW:
        refused(gated, new)
    for figure in ("memory_allocated", "max_memory_reserved", "memory_summary", "mem_get_info"):
        refused(gated, f"torch.cuda.{figure}()")
    assert gated.value("torch.cuda.memory_allocated(0)") == 4096  # what is there goes on
    gated.run("more = (old * 2 + 1).to('cuda'); torch.cuda.synchronize(); assert more.is_cuda")
    gated.run("total = more.sum().cpu()")


NEW = [
    "torch.empty(1, device='cuda')",
    "torch.empty(1, device=torch.device('cuda', 0))",
    "torch.ones(3).cuda()",
    "torch.ones(3).to('cuda:0', torch.float16)",
    "torch.ones(3).to(device='cuda')",
    "torch.ones(3).to(old)",
    "torch.nn.Linear(2, 2).to('cuda')",
    "torch.nn.Linear(2, 2, device='cuda')",
    "torch.ones(2).pin_memory()",
]


def test_the_table_and_a_choice_say_that_it_is_closed(gated: Kernel) -> None:
    line = "a gate is closed ('%gpu off --soft'): new code goes to the CPU"
    table = gated.run("%gpu").text
    assert "Gated: '%gpu off --soft' sends new code to the CPU, what is on a GPU goes on" in table
    assert table.count("gated") == 4
    assert "cuda:0" not in table.partition("CUDA was initialised")[0]
    chosen = gated.run("chosen = %gpu 0-3 -o").text
    assert chosen.startswith("gated: this process sees no GPU"), chosen
    assert line in chosen
    assert gated.value("(chosen.status, chosen.devices)") == ("gated", ())
    refused(gated, "%%gpu 0-3\ntorch.empty(1, device='cuda')")
    assert line in gated.run("%gpu off").text
    lifted = gated.run("%gpu on").text
    assert "a gate is closed" not in lifted
    assert "ated" not in gated.run("%gpu").text
    gated.run("torch.empty(1, device='cuda')")


def test_on_lifts_it_and_restores_every_object(gated: Kernel) -> None:
    lifted = gated.run("%gpu on").text
    assert lifted.startswith("applied: this process sees"), lifted
    assert "the gate is lifted" in lifted
    assert gated.run("%gpu on").text.startswith("unchanged")
    # What torch itself changes by being used is not ours.
    names = gated.value("[k[1] for k, v in state().items() if before.get(k) is not v]")
    assert {"is_available", "device_count", "_lazy_init"}.isdisjoint(names)
    assert gated.value("torch.overrides._len_torch_function_stack()") == 0
    gated.run("x = torch.empty(1, device='cuda')")


def test_what_the_user_has_replaced_since_stays(gated: Kernel) -> None:
    gated.run("mine = torch.cuda.device_count = lambda: 7")
    gated.run("%gpu on")
    assert gated.value("(torch.cuda.device_count is mine, torch.cuda.is_available())") == (
        *(True, True),
    )


def test_on_keeps_the_choice_with_which_cuda_was_initialised(kernel: Callable[..., Kernel]) -> None:
    """Also after an 'off' that came too late, and that processes started from here would see."""
    chosen = kernel()
    chosen.run("%gpu 2")
    mask = chosen.value("__import__('os').environ['CUDA_VISIBLE_DEVICES']")
    chosen.run("import torch; x = torch.empty(1, device='cuda')")
    chosen.run("%gpu off -q")
    chosen.run("%gpu off --soft")
    lifted = chosen.run("%gpu on").text
    assert lifted.startswith("applied: this process sees 1 GPU"), lifted
    assert chosen.value("__import__('os').environ['CUDA_VISIBLE_DEVICES']") == mask


def test_a_model_on_the_gpu_can_be_moved_to_the_cpu(kernel: Callable[..., Kernel]) -> None:
    """Its gradients are read for that: they are no new tensors."""
    trained = kernel()
    trained.run("import torch; net = torch.nn.Linear(4, 4).cuda(); x = torch.ones(2, 4).cuda()")
    trained.run("net(x).sum().backward()")
    trained.run("%gpu off --soft")
    trained.run("net.cpu()")
    tensors = "(*net.parameters(), *[each.grad for each in net.parameters()])"
    assert trained.value(f"{{each.device.type for each in {tensors}}}") == {"cpu"}


def test_in_time_the_gpus_are_hidden(kernel: Callable[..., Kernel]) -> None:
    """A gate would hide them from this process's torch alone."""
    k = kernel()
    k.run("import torch, subprocess, sys")
    assert k.run("%gpu off --soft").text.startswith("applied: this process sees no GPU")
    count = "[sys.executable, '-c', 'import torch; print(torch.cuda.device_count())']"
    assert k.value(f"int(subprocess.check_output({count}))") == 0
    assert k.value("torch.cuda.is_available()") is False


def test_unloading_lifts_it_and_the_users_own_modes_stay(kernel: Callable[..., Kernel]) -> None:
    late = kernel()
    late.run("import torch; torch.ones(1, device='cuda')")
    late.run("%gpu off --soft -q")
    late.run("torch.set_default_device('cpu')")
    late.run("%unload_ext gpumagic")
    assert late.value("torch.cuda.is_available()") is True
    assert late.value("torch.overrides._len_torch_function_stack()") == 1
    assert late.value("str(torch.get_default_device())") == "cpu"


def test_on_lifts_the_gate_where_cuda_had_started_before_gpumagic_was_loaded(
    kernel: Callable[..., Kernel],
) -> None:
    """Also where the process has only some of the GPUs: it keeps these."""
    late = kernel(load=False, env={"CUDA_VISIBLE_DEVICES": "1"})
    late.run("import torch; torch.cuda.init()")
    late.run("%load_ext gpumagic\n%gpu off --soft -q")
    late.run("lifted = %gpu on -o -q")
    assert late.value("(lifted.status, [d.index for d in lifted.devices])") == ("applied", [1])
    assert late.value("(torch.cuda.device_count(), torch.cuda.is_available())") == (1, True)
