"""The first completion of an option in a fresh process, against IPython's own of a magic's name."""

from __future__ import annotations

import os
from statistics import median

from tests.benchmarks.process import SHELL, script
from tests.benchmarks.row import Row

ROUNDS = 9
LINES = {"gpu": "%gpu off --", "cudatime": "%cudatime --", "gpumem": "%gpumem --"}

_COMPLETE = (
    SHELL
    + """
ip.run_line_magic("load_ext", "gpumagic")
from IPython.core.completer import provisionalcompleter

def complete(line):
    started = time.perf_counter()
    with provisionalcompleter():
        found = [each.text for each in ip.Completer.completions(line, len(line))]
    return time.perf_counter() - started, found

own, names = complete("%timei")
assert any("timeit" in name for name in names), names
ours, options = complete(sys.argv[1])
assert "--cluster" in options, options
print(json.dumps({"own": own, "ours": ours}))
"""
)


def rows() -> list[Row]:
    found: dict[str, list[tuple[float, float]]] = {magic: [] for magic in LINES}
    for turn in range(ROUNDS + 1):
        for magic, line in LINES.items():
            taken = script(_COMPLETE, os.environ, line)
            if turn:  # the first turn compiles to bytecode
                found[magic].append((taken["ours"], taken["own"]))
    note = f"IPython's first of %timei, before it; medians of {ROUNDS} fresh processes, in turns"
    return [
        Row.at_most(
            f"first completion of an option of %{magic}",
            median(ours for ours, _ in times),
            median(own for _, own in times),
            1,
            "s",
            note,
        )
        for magic, times in found.items()
    ]
