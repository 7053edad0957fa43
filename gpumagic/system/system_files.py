"""Where the files are by which a system describes itself: ``/dev``, ``/proc``, ``/sys``, ``/usr``.

Below ``/``, or below the folder that ``GPUMAGIC_ROOT`` names: where a container has its host's
files mounted, or where a test has put a machine of its own.
"""

from __future__ import annotations

import os
from pathlib import Path

ROOT = "GPUMAGIC_ROOT"


def at(path: str) -> Path:
    """Return where to look for ``path``, which is absolute."""
    return Path(os.environ.get(ROOT, "") + path)


def read(path: str) -> str | None:
    """Return the text of a file; None where it is not there, or may not be read."""
    try:
        return at(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
