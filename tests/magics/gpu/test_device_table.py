"""The device table on the virtual GPU, and ``%gpu`` that shows it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gpumagic

GIB = 2**30


def test_this_kernels_own_memory_and_others(virtual_gpu: Any) -> None:
    import torch

    virtual_gpu.add_process(0, 42424242, 3 * GIB, "someone")
    block = torch.empty(GIB, dtype=torch.uint8, device="cuda:0")
    first, second, *_ = gpumagic.devices()
    assert first.memory_own is not None
    assert first.memory_own >= GIB
    assert first.memory_others == 3 * GIB
    assert [p.own for p in first.processes or () if p.pid == 42424242] == [False]
    assert second.memory_others == 0
    del block
    torch.cuda.empty_cache()


def test_below_the_first_table_is_what_to_try_next(run_cell: Callable[..., Any]) -> None:
    assert "Try next" not in run_cell("%gpu -q").stdout
    first, second = run_cell("%gpu"), run_cell("%gpu")
    assert first.stdout == (
        "Try next: %%cudatime above a cell for its GPU time, %gpumem for GPU memory\n"
    )
    assert "Try next" not in second.stdout


def test_with_o_the_table_is_shown_once(run_cell: Callable[..., Any]) -> None:
    ran = run_cell("%gpu -o")
    assert ran.text.count("cuda:0") == 1
    assert repr(ran.value).startswith("<DeviceTable: 4 × ")
