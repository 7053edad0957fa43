"""Another process that claims GPUs."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from tests.support.device import ROOT

_CLAIM = """
import sys
from gpumagic.selection import claims
claims.held().hold(tuple(sys.argv[1:]))
print('claimed', flush=True)
input()
"""


@contextmanager
def claimed_by_another(*uuids: str, env: Mapping[str, str] | None = None) -> Iterator[int]:
    """Another process claims these, with ``env`` on the machine of that environment; its pid."""
    with subprocess.Popen(
        [sys.executable, "-c", _CLAIM, *uuids],
        cwd=ROOT,
        env={**os.environ, **(env or {})},
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
