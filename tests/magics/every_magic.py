"""Every magic as people type it: for tests of what none of them may do."""

from __future__ import annotations

SETUP = """
import asyncio, torch

def f(x):
    return x + 1

x = torch.ones(2**20, device="cuda")
"""
#: In the order in which they run: each in one process, the first of which draws for the first time.
CELLS = (
    "import gpumagic\ngpumagic.devices()",
    "%gpu",
    "%gpu doctor",
    "%gpu reset",
    "%gpu watch",
    "%gpu watch off\n%gpu plot gpus.png",
    "%%gpu on\npass",
    "%gpu?",
    "%cudatime pass",
    "%cudatime -n 2 -r 2 f(x)",
    "%cudatime --lines f(x)",
    "%%cudatime\nawait asyncio.sleep(0)",
    "%cudatime --kernels f(x)",
    "%cudatime --trace trace.json f(x)",
    "%cudatime --nvtx step f(x)",
    "%cudatime --flops f(x)",
    "%cudatime --energy f(x)",
    "%cudatime --cold f(x)",
    "%cudatime --save times.json f(x)",
    "%cudatime --against times.json f(x)",
    "%cudatime on",
    "y = f(x)",
    "%cudatime log\n%cudatime off",
    "%gpumem",
    "%gpumem y = f(x)",
    "%%gpumem --lines\ny = f(x)",
    "%%gpumem --fit n=1:8\ntorch.ones(n, device='cuda')",
    "%gpumem on",
    "y = f(x)",
    "%gpumem log\n%gpumem plot cells.png\n%gpumem off",
    "%gpumem vars",
    "torch.ones(2**50, device='cuda')  # too much: the report below",
    "%gpumem free y",
    "%gpumem limit 1GiB\n%gpumem limit off",
    "%gpumem record on\n%gpumem cells\n%gpumem snapshot memory.pickle\n%gpumem record off",
    "%unload_ext gpumagic",
)
