"""Another process that claims GPUs."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from tests.support.device import ROOT

_CLAIM = """
import sys
from gpumagic.selection import claims
claims.claim(tuple(sys.argv[1:]))
{then}
print('claimed', flush=True)
input()
"""


@contextmanager
def claimed_by_another(*uuids: str, then: str = "") -> Iterator[int]:
    """Another process claims these, and does what is said then; its pid."""
    with subprocess.Popen(
        [sys.executable, "-c", _CLAIM.format(then=then), *uuids],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "claimed\n"
        try:
            yield other.pid
        finally:
            other.communicate("\n")
