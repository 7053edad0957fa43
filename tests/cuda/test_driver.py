"""The driver's library and its devices, by ctypes and by a child process."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from gpumagic.cuda import driver
from tests.virtual_gpu import GPU, Mig, Scenario, default_uuid

HANDLE = 0x7FFE_1234_0000


class GetModuleHandle:
    """As ctypes calls it: the result is cut to an int unless ``restype`` is set."""

    restype: Any = ctypes.c_int
    argtypes: Any = None

    def __call__(self, name: str) -> int:
        return HANDLE if self.restype is ctypes.c_void_p else ctypes.c_int(HANDLE).value


def test_the_drivers_handle_keeps_its_64_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel32 = SimpleNamespace(GetModuleHandleW=GetModuleHandle())
    opened = []

    def library(name: str, handle: int) -> str:
        opened.append(handle)
        return name

    monkeypatch.setattr(driver, "_library", None)
    monkeypatch.setattr(driver, "os", SimpleNamespace(name="nt"))
    monkeypatch.setattr(ctypes, "WinDLL", lambda name: kernel32, raising=False)
    monkeypatch.setattr(ctypes, "windll", SimpleNamespace(kernel32=kernel32), raising=False)
    monkeypatch.setattr(ctypes, "CDLL", library)
    assert driver.loaded_library() is not None
    assert opened == [HANDLE]


#: What the driver lists, by machine; `tests/magics/gpu/test_mig.py` has a divided GPU in a kernel.
LISTED = [
    (Scenario(devices=2), ["GPU", "GPU"]),
    (Scenario(devices=[GPU(mig=[Mig()]), GPU()]), ["MIG"]),
    (Scenario(devices=0), []),
    (Scenario(devices=2, faults={"cuInit": 999}), []),
]


@pytest.mark.parametrize(("scenario", "kinds"), LISTED, ids=["two", "divided", "none", "broken"])
def test_the_devices_of_another_machine_are_listed(
    child_environment: Callable[..., dict[str, str]],
    monkeypatch: pytest.MonkeyPatch,
    scenario: Scenario,
    kinds: list[str],
) -> None:
    before = driver.state()
    monkeypatch.setattr(os, "environ", child_environment(scenario, {"CUDA_VISIBLE_DEVICES": "-1"}))
    listed = driver.list_in_child.__wrapped__(timeout=600)
    assert [device["uuid"][:3] for device in listed] == kinds
    for device in listed:
        assert device["memory_total"] > 2**30
        assert device["compute_capability"] >= (7, 5)
        assert device["name"]
    if kinds == ["MIG"]:
        assert listed[0]["uuid"] == default_uuid(0, 0)
    assert driver.state() == before
