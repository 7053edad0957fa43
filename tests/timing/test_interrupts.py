"""Ctrl-C while a tracer or a profiler starts leaves nothing on: it starts again."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from gpumagic.cuda.pytorch import profiling
from gpumagic.timing.lines.line_profiler import tracing_cost

#: What starts it: a module and the name of a function; the cell, and what it shows.
_MONITORING = getattr(sys, "monitoring", None)
_TRACER = ("sys", "settrace") if _MONITORING is None else ("sys.monitoring", "use_tool_id")
_CASES = {
    "lines, the cost of tracing": (*_TRACER, "%%cudatime --lines\n1", "Line "),
    "lines": (*_TRACER, "%%cudatime --lines\n1", "Line "),
    "lines of memory": (*_TRACER, "%%gpumem --lines\n1", "no change"),
    "kernels, before it has begun": (
        *("torch.autograd.profiler", "_prepare_profiler"),
        *("%%cudatime --kernels\n1", "once more for --kernels"),
    ),
    "kernels": (
        *("torch.autograd.profiler", "_enable_profiler"),
        *("%%cudatime --kernels\n1", "once more for --kernels"),
    ),
}


@pytest.mark.parametrize("case", _CASES)
def test_an_interrupt_at_the_start(
    run_cell: Any, gpu_work: Any, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    module, name, cell, shown = _CASES[case]
    owner = _MONITORING if module == "sys.monitoring" else sys.modules[module]
    original = getattr(owner, name)

    def interrupted(*arguments: Any, **named: Any) -> Any:
        original(*arguments, **named)
        if arguments != (None,):  # else it ends something
            raise KeyboardInterrupt

    if case == "lines, the cost of tracing":
        tracing_cost.cache_clear()
    else:
        tracing_cost()
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, interrupted)
        assert type(run_cell(cell, raising=False).error) is KeyboardInterrupt
        traced = sys.gettrace()
        sys.settrace(None)
    assert traced is None
    assert _MONITORING is None or _MONITORING.get_tool(3) is None
    assert not profiling.is_active()
    assert shown in run_cell(cell).text
