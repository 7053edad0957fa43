"""A module of the user's that kept variables refer to."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The file of a module of the user's; what is restored has its place on the path too."""
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    file = tmp_path / "users_module_of_keep.py"
    file.write_text("class M:\n    a = 1\n")
    importlib.invalidate_caches()
    yield file
    sys.modules.pop("users_module_of_keep", None)
