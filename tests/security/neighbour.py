"""Another user of the same machine."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

#: ``nobody``: a user that owns nothing.
UID = 65534

needs_neighbour = pytest.mark.skipif(
    os.name == "nt" or os.geteuid() != 0, reason="only root can act as another user too"
)


_BECOME = f"import os; os.setgroups([]); os.setgid({UID}); os.setuid({UID})"


def act(source: str, imports: str = "os") -> str:
    """What a Python program of the neighbour's prints.

    ``imports`` come first: the neighbour may not be able to read this Python's files.
    """
    done = subprocess.run(
        [sys.executable, "-c", f"import {imports}\n{_BECOME}\n{source}"],
        cwd="/",
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def shared_folder(parent: Path) -> Path:
    """A folder like ``/tmp``, which the neighbour reaches; ``parent`` is pytest's, of mode 0700."""
    for each in (parent, *parent.parents):
        if each.stat().st_uid == os.geteuid() and not each.stat().st_mode & 0o001:
            each.chmod(each.stat().st_mode | 0o011)
    folder = parent / "shared"
    folder.mkdir()
    folder.chmod(0o1777)
    return folder
