"""What a cell compiled, how often and why."""

from __future__ import annotations

from collections.abc import Callable

from tests.support.kernels import Kernel
from tests.support.own_files import names_our_files

#: Whether torch records why it has compiled again, and what it has not compiled: 2.6 does not.
REASONS = "'recompile_reason' in torch._dynamo.utils.CompilationMetrics.__dataclass_fields__"


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
    has_reasons = k.value(REASONS)
    if has_reasons:
        assert f"recompiled double (In[{defined.execution_count}]:2)" in again
        assert "size mismatch" in again
    else:
        assert "torch.compile compiled 1 time" in again
        assert "recompiled" not in again
    assert k.value("timing.compiled[0].function") == "double"
    assert "compiled" not in k.run("%%cudatime\ndouble(large)").shown
    scaled = k.run(
        "@torch.compile(backend='eager')\ndef scale(x, n):\n    y = x + 1\n    return y * n\n"
        "_ = scale(small, 0.0)"
    )
    shown = k.run("%%cudatime\nscale(small, 1.0)").shown
    lines = [line for line in shown.splitlines() if line.startswith("recompiled")]
    assert len(lines) == has_reasons
    if not has_reasons:
        return
    (line,) = lines
    assert f"recompiled scale (In[{scaled.execution_count}]:1), line 4: " in line
    assert line.endswith("n == 0.0")


def test_a_backward_pass_is_counted_by_itself(kernel: Callable[..., Kernel]) -> None:
    k = kernel()
    k.run(
        "import torch\nf = torch.compile(lambda x: (x * 2).sum(), backend='aot_eager')\n"
        "x = torch.ones(3, requires_grad=True)"
    )
    shown = k.run("%%cudatime -v timing\nf(x).backward()").shown
    assert "torch.compile compiled 1 time and 1 backward pass in " in shown
    assert k.value("[each.backward for each in timing.compiled]") == [False, True]
    assert k.value("all(each.seconds > 0 for each in timing.compiled)")


def test_a_graph_break_says_why_and_where(kernel: Callable[..., Kernel]) -> None:
    k = kernel()
    defined = k.run(
        "import torch\n@torch.compile(backend='eager')\ndef f(x):\n    y = x * 2\n"
        "    print('in')\n    if y.sum() > 0:\n        y = y + 1\n    return helper(y)\n\n"
        "def helper(x):\n    for i in range(2):\n        print(i)\n    return x + 1\n"
        "x = torch.ones(3, device='cuda')\n"
        "import logging\nfrom torch._dynamo import utils\n"
        "def levels(names):\n    return {name: logging.getLogger(name).level for name in names}\n"
        "before = levels([*logging.root.manager.loggerDict])"
    )
    cell = f"In[{defined.execution_count}]"
    shown = k.run("%%cudatime -v timing\nf(x)").shown
    assert ", with 3 graph breaks" in shown
    assert f"1 graph break in f ({cell}:5): " in shown
    assert "print" in shown.split(f"({cell}:5): ")[1].splitlines()[0]
    assert f"1 graph break in f ({cell}:6): data-dependent branching" in shown
    not_compiled = f"not compiled: helper ({cell}:10), line 12: "
    assert (not_compiled in shown) == k.value(REASONS)
    assert "\ufffd" not in shown
    assert k.value("[each.line for each in timing.graph_breaks]") == [5, 6, 12]
    # What the user has logged and counted is as torch left it, and nothing is shown twice.
    assert k.value("levels(before) == before and len(utils.graph_break_reasons) == 3")
    assert "graph break" not in k.run("%%cudatime\nf(x)").shown
    # What shows that code waited for the GPU is not compiled.
    k.run(
        "@torch.compile(backend='eager')\ndef waiting(x):\n    y = x + 1\n"
        "    torch.cuda.synchronize()\n    return y * 2"
    )
    assert not names_our_files(k.run("%%cudatime\nwaiting(x)").shown)
