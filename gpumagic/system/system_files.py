"""Read the files that describe the machine on Linux: ``/dev``, ``/proc``, ``/sys``, ``/usr``.

They are below ``/``, or below the folder in ``GPUMAGIC_ROOT``: the host's files mounted in a
container, or the files of a test.
"""

from __future__ import annotations

import os
from pathlib import Path

ROOT = "GPUMAGIC_ROOT"


def at(path: str) -> Path:
    """Return the location of the absolute ``path``."""
    return Path(os.environ.get(ROOT, "") + path)


def read(path: str) -> str | None:
    """Return the text of a file; None if it does not exist or may not be read."""
    try:
        return at(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
