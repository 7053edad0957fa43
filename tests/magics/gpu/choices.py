"""Choices in a kernel, for the tests of ``%gpu``."""

from __future__ import annotations

import json
from typing import Any

from tests.support.kernels import Kernel

#: What this process really sees, asked of torch and of the C environment's reader, the driver.
SEES = "(torch.cuda.is_available(), torch.cuda.device_count())"

TENSOR = "import torch; x = torch.empty(1, device='cuda')"


def choose(kernel: Kernel, spec: str, **expected: Any) -> dict[str, Any]:
    """``%gpu SPEC`` in the kernel; its result as data, compared with what is expected."""
    reply = kernel.run(f"selection = %gpu {spec} -o")
    result: dict[str, Any] = json.loads(kernel.value("selection.to_json()"))
    for name, value in expected.items():
        assert result[name] == value, (name, result)
    return {**result, "shown": reply.text, "stderr": reply.stderr}


#: Counts how often a copy of the process is asked, which costs seconds on a real machine.
COUNTING = """
import gpumagic.cuda.probe as _runtime
def _counted(_ask=_runtime.in_fork, **how): _asked.append(1); return _ask(**how)
_asked, _runtime.in_fork = [], _counted
"""
