"""What a cell compiled, how often and why."""

from __future__ import annotations

from collections.abc import Callable

from tests.support.kernels import Kernel


def test_a_recompilation_names_its_reason_and_cell(kernel: Callable[..., Kernel]) -> None:
    """In a kernel of its own: torch.compile changes a process for good."""
    k = kernel()
    defined = k.run(
        "import torch\n@torch.compile(backend='eager', dynamic=False)\ndef double(x):\n"
        "    return x * 2\nsmall, large = (torch.ones(n, device='cuda') for n in (4, 8))"
    )
    first = k.run("%%cudatime\ndouble(small)").shown
    assert "torch.compile compiled 1 time" in first
    assert "recompiled" not in first
    again = k.run("%%cudatime -v timing\ndouble(large)").shown
    assert f"recompiled double (In[{defined.execution_count}]:2)" in again
    assert "size mismatch" in again
    assert k.value("timing.compiled[0].function") == "double"
    assert "compiled" not in k.run("%%cudatime\ndouble(large)").shown


def test_a_graph_break_says_why(kernel: Callable[..., Kernel]) -> None:
    k = kernel()
    k.run(
        "import torch\n@torch.compile(backend='eager')\n"
        "def f(x):\n    print('in')\n    return x * 2"
    )
    shown = k.run("%%cudatime\nf(torch.ones(3, device='cuda'))").shown
    assert "1 graph break: " in shown
    assert "print" in shown.split("1 graph break: ")[1]
