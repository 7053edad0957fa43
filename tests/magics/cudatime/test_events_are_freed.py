"""After a cell no CUDA event is left, not even as garbage.

In a process that is forked later, the garbage collector would free it; CUDA ends the process then,
such as the worker of a ``DataLoader``.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from typing import Any

import pytest

ONE, MORE = "w.sleep(1e-4)", "w.sleep(1e-4)\nx = 1\nw.sleep(1e-4)"
CELLS = {
    "a run": ("", MORE),
    "loops": ("-n 1 -r 3", ONE),
    "repeats": ("--repeat --max-time 50ms", ONE),
    "energy": ("-n 1 -r 3 --energy", ONE),
    "lines": ("--lines", MORE),
    "lines of a function": ("--lines -f work", "work()\nwork()"),
    "lines that await": ("--lines", f"await asyncio.sleep(0)\n{MORE}"),
    "raises": ("", f"{ONE}\n1 / 0"),
    "loops that raise": ("-n 1 -r 3", f"{ONE}\n1 / 0"),
    "lines that raise": ("--lines", f"{ONE}\n1 / 0"),
    "interrupted loops": ("-n 1 -r 3", f"{ONE}\nraise KeyboardInterrupt"),
    "interrupted lines": ("--lines", f"{ONE}\nraise KeyboardInterrupt"),
}


@pytest.fixture
def _no_collection() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


def _events(torch: Any) -> set[int]:
    base = torch._C._CudaEventBase
    return {id(each) for each in gc.get_objects() if issubclass(type(each), base)}


@pytest.mark.usefixtures("_no_collection")
@pytest.mark.parametrize("name", CELLS)
def test_no_event_is_left(name: str, ip: Any, run_cell: Any, gpu_work: Any) -> None:
    options, cell = CELLS[name]

    def work() -> None:
        gpu_work.sleep(1e-4)
        gpu_work.sleep(1e-4)

    ip.user_ns.update(w=gpu_work, asyncio=asyncio, work=work)
    before = _events(gpu_work.torch)
    ran = run_cell(f"%%cudatime -q -v timing {options}\n{cell}", raising=False)
    assert (ran.error is not None) == ("1 / 0" in cell or "Interrupt" in cell)
    assert _events(gpu_work.torch) <= before
