"""How a context waits, and what a thread may ask while another one captures."""

from __future__ import annotations

import ctypes
import time
from typing import Any

import pytest
import torch

from tests.support import captures

from . import World

cuda: Any = torch.cuda


def test_a_context_whose_waits_sleep(virtual_gpu: World, clock: None) -> None:
    torch.ones(1, device="cuda")
    driver, flags, active = ctypes.CDLL("libcuda.so.1"), ctypes.c_uint(), ctypes.c_int()
    virtual_gpu.set_profile("h100")
    driver.cuDevicePrimaryCtxSetFlags_v2(0, 4)
    try:
        driver.cuDevicePrimaryCtxGetState(0, ctypes.byref(flags), ctypes.byref(active))
        assert (flags.value, active.value) == (4, 1)
        cuda._sleep(50_000_000)
        cpu = time.thread_time()
        cuda.synchronize()
        assert time.thread_time() - cpu < 5e-3
    finally:
        driver.cuDevicePrimaryCtxSetFlags_v2(0, 0)


@pytest.mark.parametrize("name", captures.ENDS)
def test_what_ends_another_threads_capture(virtual_gpu: World, name: str) -> None:
    assert captures.ends(torch, name) == captures.ENDS[name]
