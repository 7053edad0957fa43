"""``%%cudatime`` in real kernels: await, interrupts, Run All, CUDA made inside the cell."""

from __future__ import annotations

from typing import Any

from tests.magics.cudatime.test_per_cell import SAY_WAITS, SLEEP
from tests.support.waiting import UNTIL_INTERRUPTED
from tests.virtual_gpu import SLEEP_CYCLES_PER_SECOND, Scenario


def test_a_notebook(kernel: Any) -> None:
    """One kernel from its start: no torch, CUDA made inside, then everything as it should be."""
    k = kernel(Scenario(devices=3))

    # torch is not imported, and not by us
    reply = k.run("%%cudatime\n1 + 1")
    assert "no GPU time: torch is not imported" in reply.text
    assert reply.value == "2"
    k.run("import sys; assert 'torch' not in sys.modules")

    # await, which %%time refuses
    assert k.run("%%cudatime -q\nimport asyncio\nawait asyncio.sleep(0.01, 7)").value == "7"
    reply = k.run("%%cudatime\nawait asyncio.sleep(0)\n\n1 / 0", raising=False)
    assert reply.error["ename"] == "ZeroDivisionError"
    assert "wall" in reply.text.lower()

    # CUDA that is not in use is left alone
    k.run("import torch")
    assert "no GPU time: CUDA is not in use in this process" in k.run("%%cudatime\n1").text
    k.run("from gpumagic.cuda import driver\nassert driver.state().initialized is False")

    # CUDA comes to be inside the cell: no false figure
    reply = k.run(f"%%cudatime -v t\ntorch.cuda.init()\n{SLEEP}")
    assert "starting CUDA on cuda:0, first used in this cell" in reply.text
    assert k.run("t.gpu_at_most and t.gpu.median >= 0.49").value == "True"
    assert k.run("t.wall.median >= 0.5").value == "True"
    reply = k.run(f"%%cudatime -v t\n{SLEEP}")
    assert "cuda:0" in reply.text
    assert k.run("0.98 * 0.5 <= t.gpu.median <= t.wall.median").value == "True"

    # another device, and none that is not used
    k.run(f"with torch.cuda.device(1): {SLEEP}")
    k.run(f"%%cudatime -v t\nwith torch.cuda.device(1): {SLEEP}")
    assert k.run("list(t.per_device)").value == "[1]"
    k.run(f"%cudatime -q -n 2 -r 2 {SLEEP}")
    contexts = "[torch._C._cuda_hasPrimaryContext(i) for i in range(3)]"
    assert k.run(contexts).value == "[True, True, False]"


def interrupted(k: Any, cell: str, when: str) -> Any:
    """What is shown below a cell that Ctrl-C interrupts once it has printed ``when``."""
    message = k.submit(cell)
    k.until(message, when)
    k.interrupt()
    reply = k.wait(message)
    assert reply.error["ename"] == "KeyboardInterrupt"
    k.run("0")  # once the kernel does not refuse requests any more, as those of a Run All
    return reply


def test_interrupts(kernel: Any) -> None:
    k = kernel(Scenario(devices=1))
    k.run("import time")

    # a single run: before it is complete, what there is
    waiting = f"print('begun')\n{UNTIL_INTERRUPTED}"
    assert "wall" in interrupted(k, f"%%cudatime\n{waiting}", "begun").text.lower()

    # while our own wait for the GPU lasts
    k.run("import torch; torch.empty(1, device='cuda')")
    k.run(SAY_WAITS)
    long = f"torch.cuda._sleep({600 * SLEEP_CYCLES_PER_SECOND})"
    reply = interrupted(k, f"%%cudatime -v seen\n{long}", "waits")
    assert "interrupted while waiting for the GPU" in reply.text
    assert "Python returned" in reply.text
    assert "event_timer.py" not in "\n".join(reply.error["traceback"])
    assert k.run("seen.partial and seen.gpu is None").value == "True"
    assert k.run("0 < seen.host.median < seen.wall.median < 600").value == "True"


def test_a_compilation_in_a_cell_is_said(kernel: Any) -> None:
    """In a kernel of its own: torch.compile changes a process for good."""
    k = kernel()
    k.run("import torch\nf = torch.compile(lambda x: x * 2, backend='eager')\nx = torch.ones(4)")
    shown = k.run("%%cudatime\nf(x)").shown
    assert "torch.compile compiled 1 function in this run" in shown
    assert "TORCH_LOGS=recompiles,graph_breaks" in shown
    assert "compiled" not in k.run("%%cudatime\nf(x)").shown
