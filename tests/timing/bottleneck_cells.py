"""Cells of which it is known what limits them: the host that launches, or the GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

#: Seconds that a launch keeps the host for: three times as long as a tiny kernel takes, and a third
#: of what a long one takes at least.
LAUNCH = 10e-6

#: What the cells use, ``sleep(seconds)`` apart, which the test brings along.
SETUP = """
import torch
x = torch.ones(16, 16, device="cuda")
big = torch.ones(4096, 4096, device="cuda")
host = torch.ones(64, pin_memory=True)  # copies of other memory may wait for the stream
side = torch.cuda.Stream()
"""

HOST_BOUND = {
    "one tiny kernel": "x.add_(1)",
    "five hundred tiny kernels": "for _ in range(500):\n    x.mul_(2)",
    "tiny kernels that make tensors": "rows = [x[i] + x[i + 1] for i in range(15)]",
    "python between launches": "for i in range(20):\n    sum(range(500))\n    x.add_(i)",
    "tiny copies to the GPU": "for _ in range(20):\n    host.to('cuda', non_blocking=True)",
    "tiny kernels on a side stream": (
        "with torch.cuda.stream(side):\n    for _ in range(50):\n        x.add_(1)"
    ),
    "a training step of a tiny model": (
        "w = torch.ones(16, 16, device='cuda', requires_grad=True)\n"
        "((x @ w).relu() - 1).pow(2).sum().backward()"
    ),
}

GPU_BOUND = {
    "one long kernel": "sleep(2e-3)",
    "kernels of 100 µs": "for _ in range(20):\n    sleep(100e-6)",
    "a large product": "big @ big",
    "tiny ones and a long kernel": "for _ in range(5):\n    x.add_(1)\nsleep(4e-3)",
    "a long kernel on a side stream": "with torch.cuda.stream(side):\n    sleep(3e-3)",
    "a side stream that is joined": (
        "side.wait_stream(torch.cuda.current_stream())\n"
        "with torch.cuda.stream(side):\n    sleep(2e-3)\n"
        "torch.cuda.current_stream().wait_stream(side)\nsleep(1e-3)"
    ),
    "a long kernel behind some Python": "sum(range(1000))\nsleep(5e-3)",
}

#: The code, and what limits it.
ALL = {
    **{f"host: {name}": (code, "host") for name, code in HOST_BOUND.items()},
    **{f"gpu: {name}": (code, "gpu") for name, code in GPU_BOUND.items()},
}


class Namespace(dict[str, Any]):
    """A short ``repr`` for failed tests: showing a tensor of the virtual GPU may take very long."""

    def __repr__(self) -> str:
        return f"<{', '.join(self)}>"


def namespace(cycles_per_second: float) -> Namespace:
    """A namespace for the cells, after `SETUP`."""
    made = Namespace()
    exec(SETUP, made)
    sleep: Callable[[int], None] = made["torch"].cuda._sleep
    made["sleep"] = lambda seconds: sleep(int(seconds * cycles_per_second))
    return made
