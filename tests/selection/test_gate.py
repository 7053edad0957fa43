"""``%gpu off --soft``: the gate inside the process, in fresh kernels."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.kernels import Kernel
from tests.virtual_gpu import GPU, Scenario

STATE = """
import torch
def state():
    cuda, C = torch.cuda, torch._C
    owners = {"cuda": cuda, "Stream": cuda.Stream, "C": C, "T": torch}
    return {(o, k): v for o, owner in owners.items() for k, v in vars(owner).items()}
"""


@pytest.fixture(params=["fresh", "initialised"])
def gated(kernel: Callable[..., Kernel], request: pytest.FixtureRequest) -> Kernel:
    """A kernel that is gated, before or after CUDA was initialised."""
    started = kernel()
    started.run(STATE)
    if request.param == "initialised":
        started.run("old = torch.ones(1000, device='cuda:0')")
    started.run("before = state()")
    started.run("gate = %gpu off --soft -o")
    return started


def refused(kernel: Kernel, code: str) -> str:
    reply = kernel.run(code, raising=False)
    assert reply.error is not None, code
    assert reply.error["ename"] == "GateError", (code, reply.shown)
    assert "to lift that: %gpu on" in reply.error["evalue"]
    evalue: str = reply.error["evalue"]
    return evalue


def test_device_agnostic_code_goes_to_the_cpu(gated: Kernel) -> None:
    assert gated.value("gate.status") == "gated"
    assert gated.value("(torch.cuda.is_available(), torch.cuda.device_count())") == (False, 0)
    assert gated.value("torch.accelerator.is_available()") is False
    assert gated.value("str(__import__('gpumagic').device())") == "cpu"
    code = "d = 'cuda' if torch.cuda.is_available() else 'cpu'; m = torch.nn.Linear(2, 2).to(d)"
    gated.run(code)
    assert gated.value("str(m.weight.device)") == "cpu"


NEW = [
    "torch.empty(1, device='cuda')",
    "torch.empty(1, device=torch.device('cuda', 0))",
    "torch.ones(3).cuda()",
    "torch.ones(3).to('cuda')",
    "torch.ones(3).to('cuda:0', torch.float16)",
    "torch.ones(3).to(device='cuda')",
    "torch.tensor([1.0], device='cuda')",
    "torch.nn.Linear(2, 2).cuda()",
    "torch.nn.Linear(2, 2).to('cuda')",
    "torch.nn.Linear(2, 2, device='cuda')",
    "torch.cuda.Stream()",
    "torch.arange(3, device='cuda')",
    "torch.ones(2).pin_memory()",
]


def test_new_tensors_modules_and_streams_are_refused(gated: Kernel) -> None:
    for code in NEW:
        refused(gated, code)


def test_the_table_and_a_choice_say_that_it_is_closed(gated: Kernel) -> None:
    line = "a gate is closed ('%gpu off --soft'): no GPU may be used for new work"
    table = gated.run("%gpu").text
    assert "Gated: '%gpu off --soft' allows new work on no GPU" in table
    assert table.count("gated") == 4
    assert "cuda:0" not in table
    chosen = gated.run("chosen = %gpu 0-3 -o").text
    assert chosen.startswith("gated: this kernel sees no GPU"), chosen
    assert line in chosen
    assert gated.value("(chosen.status, chosen.devices)") == ("gated", ())
    refused(gated, "%%gpu 0-3\ntorch.empty(1, device='cuda')")
    assert line in gated.run("%gpu off").text
    lifted = gated.run("%gpu on").text
    assert "a gate is closed" not in lifted
    assert "ated" not in gated.run("%gpu").text
    gated.run("torch.empty(1, device='cuda')")


def test_auto_takes_what_is_wanted(kernel: Callable[..., Kernel]) -> None:
    busy = kernel(Scenario(devices=[GPU(utilization=90), GPU(memory=4 * 2**30)]))
    busy.run("chosen = %gpu auto --soft --max-util 10 -o")
    assert busy.value("[d.index for d in chosen.devices]") == [1]
    reply = busy.run("%gpu auto --soft --max-util 10 --min-free 8GiB", raising=False)
    assert "no GPU fits, 1 requested (GPU 0: 90 % utilised; GPU 1: not enough" in reply.stderr


def test_on_lifts_it_and_restores_every_object(gated: Kernel) -> None:
    lifted = gated.run("%gpu on").text
    assert lifted.startswith("applied: this kernel sees"), lifted
    assert "the gate is lifted" in lifted
    assert gated.run("%gpu on").text.startswith("unchanged")
    # What torch itself changes by being used is not ours.
    names = gated.value("[k[1] for k, v in state().items() if before.get(k) is not v]")
    assert {"is_available", "device_count", "_lazy_init", "__new__", "set_device"}.isdisjoint(names)
    assert gated.value("torch.overrides._len_torch_function_stack()") == 0
    gated.run("x = torch.empty(1, device='cuda')")


def test_unloading_lifts_it(gated: Kernel) -> None:
    gated.run("%unload_ext gpumagic")
    assert gated.value("torch.cuda.is_available()") is True


def test_existing_tensors_remain_usable_and_are_named(kernel: Callable[..., Kernel]) -> None:
    late = kernel()
    late.run(
        "import torch; old = torch.ones(1000, device='cuda'); loss = old.sum()\n"
        "cache = {i: torch.empty(2**20, device='cuda:1') for i in range(8)}"
    )
    reply = late.run("%gpu off --soft")
    assert "gated: this kernel sees no GPU" in reply.text
    lines = reply.text.splitlines()
    place = lines.index("Still on the GPU:")
    assert [line.split() for line in lines[place + 1 : place + 3]] == [
        ["cache", "32.0", "MiB", "cuda:1"],
        ["2", "more", "3.91", "KiB"],
    ]
    assert "only a restart is complete" in reply.text
    late.run("new = old * 2 + 1; total = new.sum().cpu(); same = old.to('cuda')")
    refused(late, "torch.ones(3).to(old)")


def test_one_device_of_several(kernel: Callable[..., Kernel]) -> None:
    late = kernel()
    late.run("import torch; torch.ones(1, device='cuda')")
    late.run("gate = %gpu 1 --soft -o")
    assert late.value("(gate.status, [d.index for d in gate.devices])") == ("gated", [1])
    assert late.value("torch.cuda.current_device()") == 1
    assert late.value("str(torch.empty(1, device='cuda').device)") == "cuda:1"
    refused(late, "torch.empty(1, device='cuda:0')")
    reply = late.run("torch.ones(1).cuda(2)", raising=False)
    assert reply.error is not None
    assert reply.error["ename"] == "GateError"
    trace = "\n".join(reply.error["traceback"])
    assert "gate.py" not in trace, "the gate's own frame says nothing to a user"
    timed = late.run("%cudatime torch.ones(1000, device='cuda') + 1").text
    assert "on cuda:1 · wall" in timed
    assert "refused" not in timed
    output = refused(late, "torch.cuda.set_device(0)")
    assert "cuda:0 is refused" in output
    assert "(cuda:1 is allowed)" in output
    refused(late, "torch.accelerator.set_device_index(0)")
    late.run("torch.accelerator.set_device_index(1); torch.cuda.set_device(-1)")
    late.run("%gpu on")
    assert late.value("torch.cuda.current_device()") == 0
    late.run("torch.empty(1, device='cuda:2')")


def test_one_device_is_chosen_without_a_context(kernel: Callable[..., Kernel]) -> None:
    early = kernel()
    early.run("import torch")
    early.run("%gpu 2 --soft -q")
    assert early.value("torch.cuda.is_initialized()") is False
    assert early.value("str(torch.empty(1, device='cuda').device)") == "cuda:2"
    has = "[i for i in range(4) if torch._C._cuda_hasPrimaryContext(i)]"
    assert early.value(has) == [2]


def test_one_cell(kernel: Callable[..., Kernel]) -> None:
    late = kernel()
    late.run("import torch; torch.ones(1, device='cuda')")
    assert late.run("%%gpu off --soft -q\ntorch.cuda.is_available()").value == "False"
    assert late.value("torch.cuda.is_available()") is True
    reply = late.run("%%gpu off --soft -q\ntorch.ones(1, device='cuda')", raising=False)
    assert reply.error is not None
    assert reply.error["ename"] == "GateError"
    late.run("torch.ones(1, device='cuda')")


def test_the_users_own_modes_stay(kernel: Callable[..., Kernel]) -> None:
    late = kernel()
    late.run("import torch; torch.ones(1, device='cuda')")
    late.run("%gpu off --soft -q")
    late.run("torch.set_default_device('cpu')")
    late.run("%gpu on -q")
    assert late.value("torch.overrides._len_torch_function_stack()") == 1
    assert late.value("str(torch.get_default_device())") == "cpu"


def test_a_hidden_device_cannot_be_allowed(kernel: Callable[..., Kernel]) -> None:
    late = kernel(env={"CUDA_VISIBLE_DEVICES": "0"})
    late.run("import torch; torch.ones(1, device='cuda')")
    reply = late.run("%gpu 1 --soft", raising=False)
    assert "GPU 1 is hidden from this kernel" in reply.stderr
    assert late.value("torch.cuda.is_available()") is True


def test_the_current_device_after_a_gate_under_which_cuda_has_started(
    kernel: Callable[..., Kernel],
) -> None:
    k = kernel()
    k.run("import torch")
    k.run("%gpu 1 --soft -q")
    assert k.value("torch.empty(1, device='cuda').device.index") == 1
    k.run("%gpu on -q")
    assert k.value("(torch.empty(1, device='cuda').device.index, torch.cuda.current_device())") == (
        0,
        0,
    )


def test_the_current_device_after_a_gate_for_one_cell(kernel: Callable[..., Kernel]) -> None:
    """The gate before it is closed again, and makes its device current when CUDA starts."""
    k = kernel()
    k.run("import torch")
    k.run("%gpu 1 --soft -q")
    k.run("%%gpu 2 --soft -q\nx = 1")
    assert k.value("torch.empty(1, device='cuda').device.index") == 1
    refused(k, "torch.empty(1, device='cuda:2')")
    k.run("%gpu on -q")
    assert k.value("torch.cuda.current_device()") == 0
