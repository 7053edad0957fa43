"""``%load_ext gpumagic`` against ``%load_ext autotime``, each in fresh processes, in turns."""

from __future__ import annotations

import os
from collections.abc import Iterator
from statistics import median

from tests.benchmarks.process import script
from tests.benchmarks.row import Row

ROUNDS = 9

_LOAD = """
print(seconds(lambda: ip.run_line_magic("load_ext", sys.argv[1])))
"""


def rows() -> Iterator[Row]:
    found: dict[str, list[float]] = {"gpumagic": [], "autotime": []}
    for _ in range(ROUNDS + 1):
        for extension, times in found.items():
            times.append(script(_LOAD, os.environ, extension))
    # The first ones compile to bytecode.
    ours, theirs = (median(times[1:]) for times in found.values())
    note = f"%load_ext autotime; medians of {ROUNDS} fresh processes, in turns"
    yield Row("%load_ext gpumagic", ours, theirs, note, 1.0)
