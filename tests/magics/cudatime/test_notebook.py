"""``%%cudatime`` in real kernels: await, interrupts, Run All, CUDA made inside the cell."""

from __future__ import annotations

import re
import time
from typing import Any

from tests.support.interrupts import UNTIL_INTERRUPTED
from tests.virtual_gpu import SLEEP_CYCLES_PER_SECOND, Scenario

#: By the real clock: longer than a busy machine takes until it looks whether the GPU is at work.
SLEEP = f"torch.cuda._sleep({int(0.3 * SLEEP_CYCLES_PER_SECOND)})"


def test_a_notebook(kernel: Any) -> None:
    """One kernel from its start: no torch, CUDA made inside, then everything as it should be."""
    k = kernel(Scenario(devices=3))

    # torch is not imported, and not by us
    reply = k.run("%%cudatime\n1 + 1")
    assert "no GPU time: torch is not imported" in reply.text
    assert reply.value == "2"
    k.run("import sys; assert 'torch' not in sys.modules")

    # await, which %%time refuses: in the last expression, in a statement
    reply = k.run("%%cudatime\nimport asyncio\nx = await asyncio.sleep(0.05, 4)\nx + 1")
    assert reply.value == "5"
    assert "wall" in reply.text.lower()
    assert k.run("%%cudatime -q\nawait asyncio.sleep(0.01, 7)").value == "7"
    assert k.run("%%cudatime -q\nawait asyncio.sleep(0.01, 7);").value is None
    reply = k.run("%%cudatime\nawait asyncio.sleep(0)\n\n1 / 0", raising=False)
    assert reply.error["ename"] == "ZeroDivisionError"
    assert "wall" in reply.text.lower()
    assert k.run("[line for line in __import__('threading').enumerate() if 'cuda' in str(line)]")

    # CUDA comes to be inside the cell: no false figure
    reply = k.run(f"%%cudatime -v t\nimport torch\ntorch.cuda.init()\n{SLEEP}")
    assert "CUDA was initialised inside this cell" in reply.text
    assert k.run("t.gpu").value is None
    assert k.run("t.wall.median >= 0.3").value == "True"
    reply = k.run(f"%%cudatime -v t\n{SLEEP}")
    assert "cuda:0" in reply.text
    assert k.run("0.98 * 0.3 <= t.gpu.median <= t.wall.median").value == "True"

    # the same on another device, and none on one that is not used
    reply = k.run(f"%%cudatime -v t\nwith torch.cuda.device(1): {SLEEP}")
    assert "inside this cell" in reply.text
    assert k.run("t.gpu").value is None
    reply = k.run(f"%%cudatime -v t\nwith torch.cuda.device(1): {SLEEP}")
    assert k.run("list(t.per_device)").value == "[1]"
    k.run(f"%cudatime -q -n 2 -r 2 {SLEEP}")
    contexts = "[torch._C._cuda_hasPrimaryContext(i) for i in range(3)]"
    assert k.run(contexts).value == "[True, True, False]"

    # nothing of ours in the namespace
    names = "[n for n in globals() if 'cudatime' in n or n in ('t0', 'inner', 'it')]"
    assert k.run(names).value == "[]"


def _ready(k: Any) -> None:
    """Wait for a kernel that refuses requests right after an error, as those of a Run All."""
    deadline = time.monotonic() + 300
    while k.run("0", raising=False).status != "ok":
        assert time.monotonic() < deadline


def test_interrupts(kernel: Any) -> None:
    k = kernel(Scenario(devices=1))
    k.run("import time")

    # a repeated timing: what is complete is shown, the rest of the cells does not run
    message = k.submit(
        "%%cudatime -n 1 -r 1000 -w 0\ncount = globals().setdefault('count_', [])\n"
        "count.append(1)\nprint('run', len(count))\ntime.sleep(0.05)"
    )
    k.until(message, "run 3")
    k.manager.interrupt_kernel()
    reply = k.wait(message)
    assert reply.status == "error"
    assert reply.error["ename"] == "KeyboardInterrupt"
    assert "stopped early" in reply.text
    assert "wall" in reply.text.lower()

    # before anything is complete
    _ready(k)
    message = k.submit(f"%%cudatime -n 1 -w 0\nprint('begun')\n{UNTIL_INTERRUPTED}")
    k.until(message, "begun")
    k.manager.interrupt_kernel()
    reply = k.wait(message)
    assert reply.error["ename"] == "KeyboardInterrupt"
    assert "stopped before the first repeat was complete" in reply.text

    # a single run
    _ready(k)
    message = k.submit(f"%%cudatime\nprint('begun')\n{UNTIL_INTERRUPTED}")
    k.until(message, "begun")
    k.manager.interrupt_kernel()
    reply = k.wait(message)
    assert reply.error["ename"] == "KeyboardInterrupt"
    assert "wall" in reply.text.lower()

    # while our own wait for the GPU lasts
    _ready(k)
    k.run("import torch; torch.empty(1, device='cuda')")
    some = f"torch.cuda._sleep({3 * SLEEP_CYCLES_PER_SECOND})"
    message = k.submit(f"%%cudatime -q\n{some}\nprint('queued')")
    k.until(message, "queued")
    k.manager.interrupt_kernel()
    assert k.wait(message).text == ""
    _ready(k)
    k.run("torch.cuda.synchronize()")  # what is left of it would be waited for first
    k.run(
        "from gpumagic.timing import event_timer\nreal = event_timer.wait_for\n"
        "event_timer.wait_for = lambda event: (print('waits', flush=True), real(event))"
    )
    long = f"torch.cuda._sleep({600 * SLEEP_CYCLES_PER_SECOND})"
    message = k.submit(f"%%cudatime -v seen\n{long}")
    k.until(message, "waits")
    k.manager.interrupt_kernel()
    reply = k.wait(message)
    assert reply.error["ename"] == "KeyboardInterrupt"
    assert "interrupted while waiting for the GPU" in reply.text
    assert "Python returned" in reply.text
    assert "event_timer.py" not in "\n".join(reply.error["traceback"])
    _ready(k)
    assert k.run("seen.partial and seen.gpu is None").value == "True"
    assert k.run("0 < seen.host.median < seen.wall.median < 600").value == "True"

    # while our wait for earlier work lasts
    _ready(k)
    message = k.submit("%%cudatime\nran = True")
    k.until(message, "waits")
    k.manager.interrupt_kernel()
    reply = k.wait(message)
    assert reply.error["ename"] == "KeyboardInterrupt"
    assert "interrupted while waiting for earlier GPU work; nothing was run" in reply.text
    _ready(k)
    assert k.run("'ran' in globals()").value == "False"

    # the garbage collector is on again
    _ready(k)
    assert k.run("import gc; gc.isenabled()").value == "True"


def test_progress_shows_and_goes(kernel: Any) -> None:
    k = kernel(Scenario(devices=1))
    k.run("import time\nfrom gpumagic.magics.output import Progress\nProgress.DELAY = 0.05")
    slow = "%cudatime -n 1 -r 6 -w 0 time.sleep(0.02)"
    reply = k.run(slow)
    assert reply.stderr == ""  # which front ends colour as an error
    assert re.search(r"%cudatime +[█-▏]+ +\d+ % · \d.* ms · median \d\d", reply.text)
    assert "%cudatime" not in k.run(slow.replace("-n", "-q -n")).text
    k.run("Progress.DELAY = 1000")
    assert "%cudatime" not in k.run(slow).text


def test_cuda_not_in_use_is_left_alone(kernel: Any) -> None:
    k = kernel(Scenario(devices=1))
    k.run("import torch")
    assert "no GPU time: CUDA is not in use in this process" in k.run("%%cudatime\n1").text
    k.run("from gpumagic.cuda import driver\nassert driver.state().initialized is False")


def test_a_compilation_in_a_cell_is_said(kernel: Any) -> None:
    """In a kernel of its own: torch.compile changes a process for good."""
    k = kernel()
    k.run("import torch\nf = torch.compile(lambda x: x * 2, backend='eager')\nx = torch.ones(4)")
    shown = k.run("%%cudatime\nf(x)").shown
    assert "torch.compile compiled 1 function in this run" in shown
    assert "TORCH_LOGS=recompiles,graph_breaks" in shown
    assert "compiled" not in k.run("%%cudatime\nf(x)").shown
    shown = k.run("%%cudatime -n 1 -r 2\nf(x[:2, None])").shown
    assert "torch.compile compiled in the first run, not counted" in shown
