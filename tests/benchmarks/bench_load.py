"""``%load_ext gpumagic`` against other extensions, each in fresh processes, in turns."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from statistics import median

from tests.benchmarks.process import SHELL, reason, script
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
    #: JUmPER is the nearest rival as an extension of notebooks.
    found: dict[str, list[float]] = {"gpumagic": [], "autotime": [], "jumper_extension": []}
    missing: dict[str, str] = {}
    heavy: set[str] = set()
    for turn in range(ROUNDS + 1):
        for extension, times in found.items():
            if extension in missing:
                continue
            try:
                loaded = script(_LOAD, os.environ, extension)
            except RuntimeError as error:
                if extension == "gpumagic":
                    raise
                missing[extension] = reason(error)
                continue
            if turn:  # the first turn compiles to bytecode
                times.append(loaded["seconds"])
            if extension == "gpumagic":
                heavy |= {name.split(".")[0] for name in loaded["modules"]} & set(HEAVY)
    note = f"%load_ext autotime; medians of {ROUNDS} fresh processes each, in turns"
    ours = median(found["gpumagic"])
    return [
        _against(
            "autotime",
            missing,
            lambda: Row.at_most(
                "%load_ext gpumagic", ours, median(found["autotime"]), 1, "s", note
            ),
        ),
        _against(
            "jumper_extension",
            missing,
            lambda: Row.shown(
                "%load_ext gpumagic",
                ours,
                median(found["jumper_extension"]),
                note="%load_ext jumper_extension (JUmPER); the same",
            ),
        ),
        Row.equal(
            "heavy packages imported by it",
            len(heavy),
            0,
            "packages",
            f"of {', '.join(HEAVY)}" + (f"; imported: {sorted(heavy)}" if heavy else ""),
        ),
    ]


def _against(peer: str, missing: Mapping[str, str], row: Callable[[], Row]) -> Row:
    if peer in missing:
        return Row.missing(f"%load_ext {peer}", missing[peer])
    return row()
