"""``%load_ext gpumagic`` against ``%load_ext autotime``, each in fresh processes, in turns."""

from __future__ import annotations

import os
from statistics import median

from tests.benchmarks.process import SHELL, script
from tests.benchmarks.row import Row

ROUNDS = 15
HEAVY = ("torch", "pynvml", "rich", "pandas")

_LOAD = (
    SHELL
    + """
known = set(sys.modules)
started = time.perf_counter()
ip.run_line_magic("load_ext", sys.argv[1])
taken = time.perf_counter() - started
print(json.dumps({"seconds": taken, "modules": sorted(set(sys.modules) - known)}))
"""
)


def rows() -> list[Row]:
    found: dict[str, list[float]] = {"gpumagic": [], "autotime": []}
    heavy: set[str] = set()
    for turn in range(ROUNDS + 1):
        for extension, times in found.items():
            loaded = script(_LOAD, os.environ, extension)
            if turn:  # the first turn compiles to bytecode
                times.append(loaded["seconds"])
            if extension == "gpumagic":
                heavy |= {name.split(".")[0] for name in loaded["modules"]} & set(HEAVY)
    note = f"%load_ext autotime; medians of {ROUNDS} fresh processes each, in turns"
    return [
        Row.at_most(
            "%load_ext gpumagic", median(found["gpumagic"]), median(found["autotime"]), 1, "s", note
        ),
        Row.equal(
            "heavy packages imported by it",
            len(heavy),
            0,
            "packages",
            f"of {', '.join(HEAVY)}" + (f"; imported: {sorted(heavy)}" if heavy else ""),
        ),
    ]
