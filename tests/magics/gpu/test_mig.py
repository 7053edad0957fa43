"""GPUs that are divided into MIG instances: one is chosen, and its own figures are shown."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.support.kernels import Kernel
from tests.virtual_gpu import GPU, Mig, Scenario, default_uuid

GIB = 2**30
FIRST, SECOND, THIRD = default_uuid(0, 0), default_uuid(0, 1), default_uuid(1, 0)
DIVIDED = Scenario(devices=[GPU(mig=[Mig(), Mig()]), GPU(mig=[Mig()]), GPU()])
SEEN = "[(d.index, d.instance, d.memory_total) for d in selection.devices]"
UUIDS = """
import torch
torch.empty(1, device="cuda")
uuids = [str(torch.cuda.get_device_properties(i).uuid) for i in range(torch.cuda.device_count())]
"""


def mask(kernel: Kernel) -> Any:
    return kernel.value("__import__('os').environ.get('CUDA_VISIBLE_DEVICES')")


def test_the_instance_that_was_given_stays(kernel: Callable[..., Kernel]) -> None:
    """Auto keeps to it, the report on memory is of it, and another of the same GPU is too late."""
    k = kernel(DIVIDED, env={"CUDA_VISIBLE_DEVICES": SECOND})
    k.run("%gpu off -q\nselection = %gpu auto -o")
    assert mask(k) == SECOND
    assert k.value(SEEN) == [(0, SECOND, 10 * GIB)]
    row = "(lambda d: (d.index, d.free, d.total, d.others))(gpumagic.gpumem().devices[0])"
    k.run("import gpumagic")
    assert k.value(row) == (0, 10 * GIB, 10 * GIB, 0)
    k.run(UUIDS)
    assert k.value("uuids") == [SECOND[4:]]
    index, free, total, others = k.value(row)
    assert (index, total, others) == (0, 10 * GIB, 0)
    assert 9 * GIB < free < 10 * GIB
    reply = k.run("%gpu auto 2", raising=False)
    assert reply.stderr.startswith("UsageError: 2 GPUs are requested")
    assert mask(k) == SECOND
    k.run("selection = %gpu 0 -o -q")  # would be the first instance
    assert k.value("selection.status") == "too-late"
    assert k.value(SEEN) == [(0, SECOND, 10 * GIB)]
    k.run(f"selection = %gpu {SECOND} -o -q")
    assert k.value("selection.status") == "applied"
    seen = "[d.as_seen().memory_total for d in gpumagic.devices() if d.ordinal == 0]"
    assert k.value(seen) == [10 * GIB]


def test_the_outcome_names_the_instances_own_memory(kernel: Callable[..., Kernel]) -> None:
    fresh_kernel = kernel(DIVIDED)
    shown = fresh_kernel.run("%gpu").text
    assert "This process sees 1 of 3 GPUs" in shown
    assert "CUDA shows a process one MIG instance, and no other GPU beside it." in shown
    shown = fresh_kernel.run(f"%gpu {THIRD}").text
    assert "cuda:0 is GPU 1, NVIDIA H100 80GB HBM3 MIG 1g.10gb, 10.0 GiB free" in shown
    fresh_kernel.run(UUIDS)
    assert fresh_kernel.value("uuids") == [THIRD[4:]]


def test_mig_without_an_instance_is_no_gpu(kernel: Callable[..., Kernel]) -> None:
    """CUDA finds no device, so nothing is applied; what to type is said."""
    empty = kernel(Scenario(devices=[GPU(mig_mode=True), GPU()]))
    for spec in ("0", "0,1", "auto 2"):
        reply = empty.run(f"%gpu {spec}", raising=False)
        assert reply.status == "error"
        assert "it is in MIG mode without an instance: sudo nvidia-smi mig -i 0 -cgi" in (
            reply.stderr
        )
        assert mask(empty) is None
    empty.run("selection = %gpu 1 -o -q")
    assert mask(empty) is None  # CUDA shows it that one anyway
    alone = kernel(Scenario(devices=[GPU(mig_mode=True)]))
    assert "This process sees none of 1 GPU" in alone.run("%gpu").text
    assert "because" in (shown := alone.run("%gpu doctor").text)
    assert "in MIG mode without an instance" in shown.splitlines()[0]


def test_an_instances_processes_are_asked_of_the_instance(kernel: Callable[..., Kernel]) -> None:
    """To list those of the whole GPU takes rights that a container does not have."""
    divided = [GPU(mig=[Mig(), Mig()], denied=frozenset({"processes", "memory"}))]
    k = kernel(Scenario(devices=divided), env={"CUDA_VISIBLE_DEVICES": SECOND})
    k.run(UUIDS + "import gpumagic; seen = gpumagic.devices()[0].as_seen()")
    assert k.value("[process.own for process in seen.processes]") == [True]
    assert k.value("(seen.memory_others, seen.memory_used > 2**20)") == (0, True)
