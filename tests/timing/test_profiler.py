"""The profiler's trace file."""

from __future__ import annotations

import json
import stat
import sys
from pathlib import Path

import pytest

from gpumagic.timing import profiler


@pytest.mark.skipif(sys.platform == "win32", reason="no such permissions")
def test_nobody_else_reads_the_profile(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch replaces the file that it is given by one of its own mode."""
    folders = []

    def export(name: str) -> None:
        path = Path(name)
        folders.append((path.parent, stat.S_IMODE(path.parent.stat().st_mode)))
        path.unlink(missing_ok=True)
        path.write_text(json.dumps({"traceEvents": []}))

    profiled = object.__new__(profiler.Profiled)
    profiled._trace = None
    profiled._profile = type("Profile", (), {"export_chrome_trace": staticmethod(export)})
    monkeypatch.setattr(profiler, "report", len)
    profiled._read()
    ((folder, mode),) = folders
    assert mode == 0o700
    assert not folder.exists()
