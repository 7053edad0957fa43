"""What it costs to know who initialised CUDA, against a cell that imports torch.

A cell's time varies by far more than 1 % from run to run, so the hooks' own time is added up: the
time that a watched import and a look at the driver take, times how often ``import torch`` makes
them do so.
"""

from __future__ import annotations

import os

from tests.benchmarks.process import SHELL, script
from tests.benchmarks.row import Row

_SCRIPT = (
    SHELL
    + """
import builtins
ip.run_line_magic("load_ext", "gpumagic")
from gpumagic import witness
watched, original = builtins.__import__, witness._witness._import
counts = {"imports": 0, "looks": 0}

def counting(name, globals=None, locals=None, fromlist=(), level=0):
    counts["imports"] += 1
    counts["looks"] += not (level or name.partition(".")[0] in sys.modules)
    return original(name, globals, locals, fromlist, level)

builtins.__import__ = counting
started = time.perf_counter()
import torch
cell = time.perf_counter() - started
builtins.__import__ = watched

def per_call(function, *arguments, loops=20000):
    times = []
    for _ in range(7):
        started = time.perf_counter()
        for _ in range(loops):
            function(*arguments)
        times.append((time.perf_counter() - started) / loops)
    return min(times)

arguments = ("torch", globals(), None, ("cuda",), 0)
hook = per_call(watched, *arguments) - per_call(original, *arguments)
# The dearer of the two: while the driver's library is not loaded, the loader looks for it.
from gpumagic import driver
library, driver._library = driver._library, None
known, driver._LIBRARY = driver._LIBRARY, "libcuda-not-loaded.so.1"
look = per_call(witness._driver_is_up, loops=500)
driver._library, driver._LIBRARY = library, known
assert counts["imports"] > 1000 and counts["looks"] > 10, counts
print(json.dumps({"cell": cell, "cost": counts["imports"] * hook + counts["looks"] * look}))
"""
)


def rows() -> list[Row]:
    measured = script(_SCRIPT, os.environ)
    note = "the cell `import torch`; the hooks' time added up from the calls that it makes"
    return [
        Row.at_most(
            "knowing who initialised CUDA", measured["cost"], measured["cell"], 0.01, "s", note
        )
    ]
