"""What a cell compiled: that it did, and where torch says why."""

from __future__ import annotations

from collections.abc import Callable

from tests.support.kernels import Kernel


def test_a_compilation_in_a_cell_is_said(kernel: Callable[..., Kernel]) -> None:
    """In a kernel of its own: torch.compile changes a process for good."""
    k = kernel()
    k.run("import torch\nf = torch.compile(lambda x: x * 2, backend='eager')\nx = torch.ones(4)")
    shown = k.run("%%cudatime\nf(x)").shown
    assert "torch.compile compiled 1 function in this run" in shown
    assert "TORCH_LOGS=recompiles,graph_breaks" in shown
    assert "compiled" not in k.run("%%cudatime\nf(x)").shown
    shown = k.run("%%cudatime -n 1 -r 2\nf(x[:2, None])").shown
    assert "torch.compile compiled in the first run, not counted" in shown
