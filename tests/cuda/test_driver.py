"""The driver's library, by ctypes."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

import pytest

from gpumagic.cuda import driver

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
