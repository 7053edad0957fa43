"""``%%cudatime --lines`` of a cell that awaits several tasks."""

from __future__ import annotations

from typing import Any

from gpumagic.results import CudaTiming

CELL = """\
%%cudatime --lines -q -v timing -f f
import asyncio
async def f():
    w.sleep(.02)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
async def other():
    wait()
await asyncio.gather(f(), other())
"""


def test_a_wait_of_another_task_is_no_lines(ip: Any, run_cell: Any, gpu_work: Any) -> None:
    wait = gpu_work.torch._C._cuda_synchronize  # not by a name that is watched
    wait()
    ip.user_ns.update(w=gpu_work, wait=wait)
    run_cell(CELL)
    timing = ip.user_ns["timing"]
    assert isinstance(timing, CudaTiming)
    assert timing.lines is not None, timing.notes
    (function,) = timing.lines.functions
    assert {line.line: line.syncs for line in function.lines} == {4: 0, 5: 0, 6: 0}
