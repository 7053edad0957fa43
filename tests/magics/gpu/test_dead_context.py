"""A restart after a device-side assert: data on the host comes back, CUDA is not called."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from typing import Any

import pytest

from gpumagic.cuda.process_state import STATE
from gpumagic.magics.gpu import keep_variables
from gpumagic.restart import variables as keep
from tests.support.kernels import Kernel
from tests.support.parking import needs_parking

CELL = """
import os, torch, numpy as np, torch.nn.functional as F
from torch import nn, float16
model = nn.Linear(2, 2).cuda(); optimizer = torch.optim.Adam(model.parameters())
inputs = [{'x': torch.ones(2, device='cuda:1')}]; stream = torch.cuda.Stream()
generator = torch.Generator('cuda'); device = torch.device('cuda', 1)
loss, pinned, history = torch.ones(2), torch.ones(2).pin_memory(), [0.5, 0.25]
def scaled(a): return np.float32(a) * len(history)
class Config: size = 3
config = Config()
"""
END = "from tests.virtual_gpu import World; World.current().end_context(710); del World"
VARIABLE = "__import__('os').environ.get('CUDA_LAUNCH_BLOCKING')"


def test_what_is_on_the_host_survives_a_dead_context(kernel: Callable[..., Kernel]) -> None:
    k = kernel()
    k.run(CELL)
    k.run(END)
    failed = k.run("torch.cuda.synchronize()", raising=False)
    assert "%gpu reset --restart --keep all, with the variables on the host" in failed.text
    k.run("%env CUDA_LAUNCH_BLOCKING=1")
    shown = k.run("selection = %gpu reset --restart --keep all -o").text
    assert "Kept: " in shown
    assert "Lost: 5 variables (model, optimizer, inputs, stream, generator)." in shown
    assert (
        "Could not be kept, since the GPU could not be read any more: "
        "model, optimizer, inputs, stream, generator."
    ) in shown
    assert "Not kept: CUDA's random state of cuda:0, cuda:1 (it could not be read" in shown
    assert k.value("selection.lost") == ("model", "optimizer", "inputs", "stream", "generator")
    # The next cell goes on: CUDA works, and what the names stood for is there.
    assert k.value("(*nn.Linear(1, 1).cuda().weight.cpu().shape, F is nn.functional)") == (
        1,
        1,
        True,
    )
    assert k.value("(float16 is torch.float16, str(device), int(scaled(1)), config.size)") == (
        *(True, "cuda:1", 2, 3),
    )
    assert k.value("(loss.tolist(), pinned.tolist(), history)") == ([1, 1], [1, 1], [0.5, 0.25])
    assert k.value(VARIABLE) == "1"
    # The next restart takes it away, also where nothing else needs one.
    shown = k.run("%gpu reset --restart --keep history").text
    assert "CUDA_LAUNCH_BLOCKING" not in shown
    assert "Imported again: os, torch, np, F, nn, float16." in shown
    assert k.value(VARIABLE) is None
    assert k.value("(history, torch.ones(1).tolist(), 'loss' in globals())") == (
        *([0.5, 0.25], [1.0], False),
    )


def test_an_error_that_was_caught_and_no_line_has_shown(kernel: Callable[..., Kernel]) -> None:
    """The restart checks the context; variables that were not named are lost as usual."""
    k = kernel()
    k.run("import torch; x = torch.ones(2, device='cuda'); a, b = 1, 2")
    k.run(END)
    shown = k.run("%gpu reset --restart --keep x a").text
    assert "Kept: a." in shown
    assert "Lost: 2 variables (x, b)." in shown
    assert "Could not be kept, since the GPU could not be read any more: x." in shown
    assert k.value("(a, torch.ones(1, device='cuda').cpu().tolist())")[0] == 1


@needs_parking
def test_what_is_parked_survives_a_dead_context(kernel: Callable[..., Kernel]) -> None:
    """Its content is in host memory: it is kept, and CUDA is asked nothing."""
    k = kernel()
    k.run(
        "import builtins, torch\nfrom tests.virtual_gpu import World\n"
        "builtins.end = lambda: World.current().end_context(710)\n"
        "x = torch.arange(1000.).cuda(); y = x[3:9]; host = [1]"
    )
    k.run("%gpumem park -q\nend()")
    shown = k.run("x.sum()", raising=False).shown
    assert "parked memory cannot come back: CUDA error" in shown
    assert "%gpu reset --restart --keep all takes it along" in shown
    k.run("%gpu reset --restart --keep x y host")
    assert k.value("(y.tolist(), x.device.type, host)") == ([3, 4, 5, 6, 7, 8], "cuda", [1])
    assert k.value("y.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()")


@pytest.mark.own_process
def test_work_that_fails_while_variables_are_written(
    ip: Any, virtual_gpu: Any, run_cell: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kernel that was still running when the context was checked."""

    class Ends:
        def __reduce__(self) -> Any:
            virtual_gpu.end_context(710)
            return int, ()

    monkeypatch.setattr(STATE, "dead_context", None)
    run_cell("import torch; x = torch.ones(2, device='cuda'); host = [1]")
    ip.user_ns["ends"] = Ends()
    payload: dict[str, Any] = {"quiet": True}
    options = argparse.Namespace(keep=["all"], force=False)
    files = keep_variables.write(ip, options, payload, dict(os.environ))
    keep.close(files)
    assert (payload["dead"], payload["lost_with_context"]) == (True, ["x"])
    assert payload["not_kept"] == {}
    assert len(files) == 1  # there is no tensor to write
