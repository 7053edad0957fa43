"""Child processes: what they print, and where programs are looked for."""

from __future__ import annotations

import os

import pytest

from gpumagic.system import child_process

pytestmark = pytest.mark.skipif(os.name == "nt", reason="the planted files are for POSIX")


def test_a_childs_traceback_has_no_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python 3.13 colours tracebacks, and `FORCE_COLOR`, which ipykernel sets, also in a file."""
    for name in ("FORCE_COLOR", "PYTHON_COLORS"):
        monkeypatch.setenv(name, "1")
    failed = child_process.python("1 / 0", environment=os.environ, timeout=300)
    assert failed.stderr.splitlines()[-1] == "ZeroDivisionError: division by zero"
    assert child_process.last_error("x\nKeyError: 1\n\n") == "KeyError: 1"
