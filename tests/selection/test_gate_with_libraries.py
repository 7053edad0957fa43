"""Libraries that choose a device themselves, with a closed gate: accelerate, lightning.

They are only asked in kernels, never imported here. Early: nothing is imported and CUDA is not in
use when the gate closes; late: both are, which is what the gate is for.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec

import pytest

from tests.support.kernels import Kernel

WHEN = pytest.mark.parametrize("when", ["early", "late"])
accelerate = pytest.mark.skipif(not find_spec("accelerate"), reason="accelerate is not installed")
lightning = pytest.mark.skipif(not find_spec("lightning"), reason="lightning is not installed")

DATA = """
import torch
def data(**options):
    rows = torch.utils.data.TensorDataset(torch.ones(8, 2))
    return torch.utils.data.DataLoader(rows, batch_size=4, **options)
"""
ACCELERATE = DATA + (
    """
def train(accelerator):
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, batches = accelerator.prepare(model, optimizer, data())
    for (batch,) in batches:
        accelerator.backward(model(batch).sum())
        optimizer.step()
    return {str(batch.device), str(model.weight.device), str(model.weight.grad.device)}
"""
)
LIGHTNING = DATA + (
    """
import logging, warnings
import lightning
warnings.simplefilter("ignore")  # advice on logging and on workers
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer, self.devices = torch.nn.Linear(2, 1), set()
    def training_step(self, batch, number):
        self.devices |= {str(batch[0].device), str(self.layer.weight.device)}
        return self.layer(batch[0]).sum()
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)
def trainer(**options):
    quiet = dict(logger=False, enable_checkpointing=False, enable_progress_bar=False)
    return lightning.Trainer(max_steps=2, enable_model_summary=False, **quiet, **options)
def fit(**options):
    model, chosen = Model(), trainer(**options)
    chosen.fit(model, data(pin_memory=True))
    return chosen.global_step, model.devices
"""
)


@pytest.fixture
def library(kernel: Callable[..., Kernel], when: str) -> Callable[[str, str], Kernel]:
    """``library(code, gate)``: a kernel with ``code`` run and the gate closed by ``gate``."""

    def start(code: str, gate: str = "%gpu off --soft -q") -> Kernel:
        started = kernel()
        if when == "late":
            started.run(code + "old = torch.ones(9, device='cuda')")
            started.run(gate)
        else:
            started.run(gate)
            started.run(code)
        return started

    return start


def refused(kernel: Kernel, code: str) -> str:
    reply = kernel.run(code, raising=False)
    assert reply.error is not None, code
    assert reply.error["ename"] == "GateError", reply.shown
    evalue: str = reply.error["evalue"]
    return evalue


@accelerate
@WHEN
def test_accelerate_goes_to_the_cpu(library: Callable[..., Kernel]) -> None:
    gated = library(ACCELERATE + "import accelerate\n")
    gated.run("state, chosen = accelerate.PartialState(), accelerate.Accelerator()")
    assert gated.value("(str(state.device), str(chosen.device))") == ("cpu", "cpu")
    assert gated.value("(state.distributed_type.value, state.num_processes)") == ("NO", 1)
    assert gated.value("train(chosen)") == {"cpu"}
    assert gated.value("accelerate.utils.is_cuda_available()") is False
    gated.run("memory = accelerate.utils.get_max_memory()")
    assert gated.value("[*memory]") == ["cpu"]
    gated.run("placed = accelerate.infer_auto_device_map(torch.nn.Linear(2, 2), memory)")
    assert gated.value("[str(device) for device in placed.values()]") == ["cpu"]
    # accelerate keeps its first decision until its state is reset
    gated.run("%gpu on -q")
    gated.run("accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)")
    assert gated.value("str(accelerate.Accelerator().device)") == "cuda"


@accelerate
def test_what_accelerate_decided_before_is_refused(kernel: Callable[..., Kernel]) -> None:
    late = kernel()
    late.run(ACCELERATE + "import accelerate\nchosen = accelerate.Accelerator()")
    late.run("%gpu off --soft -q")
    assert "to lift that: %gpu on" in refused(late, "train(chosen)")
    late.run("%gpu on -q")
    assert late.value("train(chosen)") == {"cuda:0"}


@accelerate
@WHEN
def test_accelerate_uses_the_allowed_device(library: Callable[..., Kernel]) -> None:
    gated = library(ACCELERATE + "import accelerate\n", "%gpu 1 --soft -q")
    assert gated.value("train(accelerate.Accelerator())") == {"cuda:1"}


@lightning
@WHEN
def test_lightning_goes_to_the_cpu(library: Callable[..., Kernel]) -> None:
    gated = library(LIGHTNING)
    for options in ("", "accelerator='auto'", "accelerator='auto', devices='auto'"):
        chosen = gated.value(f"type(trainer({options}).accelerator).__name__")
        assert chosen == "CPUAccelerator", options
    assert gated.value("str(lightning.Fabric(accelerator='auto').device)") == "cpu"
    assert gated.value("fit(accelerator='auto')") == (2, {"cpu"})
    assert gated.value("fit(precision='16-mixed')") == (2, {"cpu"})
    reply = gated.run("trainer(accelerator='gpu')", raising=False)
    assert "No supported gpu backend found!" in reply.shown
    gated.run("%gpu on -q")
    chosen = gated.value("type(trainer(accelerator='auto', devices=1).accelerator).__name__")
    assert chosen == "CUDAAccelerator"


@lightning
@WHEN
def test_lightning_uses_only_the_allowed_device(
    library: Callable[..., Kernel],
) -> None:
    """It numbers devices from 0 on, whichever is current: the error names the allowed one."""
    gated = library(LIGHTNING, "%gpu 1 --soft -q")
    assert gated.value("fit(devices=[1])") == (2, {"cuda:1"})
    assert "cuda:0 is refused" in (output := refused(gated, "fit(devices=1)"))
    assert "cuda:1 is allowed" in output
