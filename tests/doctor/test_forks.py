"""A worker that is forked after a magic, or after a report below a failed cell, can use CUDA."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

#: What asks, as a person types it before any use of CUDA.
ASKED = (
    "%gpu",
    "%gpu ps",
    "%gpu doctor",
    "%gpu 0,1",
    "%gpu auto",
    "%gpu off\n%gpu on",
    "%%gpu 1\npass",
    "%gpumem",
    "%gpumem vars",
    "%gpumem limit 1G",
    "%gpumem limit off",
    "%%gpumem\npass",
    "%%cudatime\npass",
    "%%cudatime -r 1 -n 1\npass",
    "import gpumagic; gpumagic.device()",
    "raise RuntimeError('No CUDA GPUs are available')",
    "raise RuntimeError('CUDA error: no kernel image is available for execution on the device')",
    "raise RuntimeError('Unexpected error from cudaGetDeviceCount(). Error 804: forward …')",
    "raise RuntimeError('CUDA error: out of memory')",
)
#: A worker as multiprocessing and DataLoader fork it on Linux.
WORKER = """
import os
worker = os.fork()
if worker == 0:
    try:
        torch.ones(3, device="cuda").cpu()
        os._exit(0)
    except BaseException as error:
        print(error, flush=True)
        os._exit(1)
status = os.waitpid(worker, 0)[1]
"""


def test_a_worker_can_use_cuda(kernel: Callable[..., Any]) -> None:
    fresh = kernel()
    fresh.run("import torch")
    for asked in ASKED:
        fresh.run(asked, raising=False)
        worker = fresh.run(WORKER)
        assert fresh.value("status") == 0, (asked, worker.stdout)
