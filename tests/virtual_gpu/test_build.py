"""The building of the libraries."""

from __future__ import annotations

import ctypes
import importlib.util
import re
import sys
from pathlib import Path

import pytest

from . import build


def test_all_that_torch_wants_is_there() -> None:
    """What it binds to the runtime and to cuBLAS; it is loaded with the names' versions."""
    preloaded = ctypes.CDLL(None)
    names = [name for name in build.wanted() if re.match(r"(__)?cuda[A-Z]|cublas|cupti", name)]
    assert len(names) > 100
    assert [name for name in names if not hasattr(preloaded, name)] == []


@pytest.mark.skipif(importlib.util.find_spec("ziglang") is None, reason="needs ziglang")
def test_the_compiler_from_a_wheel(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Where the machine has no compiler, the one of the wheel ziglang builds the same."""
    monkeypatch.setenv("CC", f"{sys.executable} -m ziglang cc")
    library = tmp_path / "preload" / "libcudart.so.12"
    defines = ("-DVG_CUDART_MAJOR=12", "-DVG_CUDART_VERSION=12040")
    wanted = ["cudaMalloc", "cudaNobodyKnows"]
    build.compile_library(library, ("runtime.c", "state.c"), defines, wanted, 801)
    built = ctypes.CDLL(str(library))
    for name in (*wanted, "cudaGetDeviceProperties_v2"):
        assert hasattr(built, name)


def test_no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the way out."""
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(build.BuildError, match="pip install ziglang"):
        build.compiler()
