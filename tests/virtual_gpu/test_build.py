"""The building of the libraries."""

from __future__ import annotations

import ctypes
import importlib.util
import re

import pytest

from . import build


def test_all_that_torch_wants_is_there() -> None:
    """What it binds to the runtime and to cuBLAS; it is loaded with the names' versions."""
    preloaded = ctypes.CDLL(None)
    names = [name for name in build.wanted() if re.match(r"(__)?cuda[A-Z]|cublas|cupti", name)]
    assert len(names) > 100
    assert [name for name in names if not hasattr(preloaded, name)] == []


def test_no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the way out."""
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(build.BuildError, match="pip install ziglang"):
        build.compiler()
