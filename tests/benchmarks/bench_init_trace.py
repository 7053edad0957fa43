"""The cost of tracing who initialised CUDA, against a cell that imports torch.

A cell's time varies by far more than 1 % from run to run, so the hooks' own time is added up: the
time that noting an import and a look at the driver take, times how often ``import torch`` makes
them do so.
"""

from __future__ import annotations

import os

from tests.benchmarks.process import SHELL, script
from tests.benchmarks.row import Row

_SCRIPT = (
    SHELL
    + """
import importlib, weakref
ip.run_line_magic("load_ext", "gpumagic")
ip.run_cell("None")
from gpumagic.cuda import driver, import_trace
locks, plain = importlib._bootstrap._module_locks, {}
counts = {"imports": 0, "packages": 0}
note = import_trace._Locks.__setitem__

def counting(self, name, lock):
    counts["imports"] += 1
    counts["packages"] += "." not in name
    note(self, name, lock)

import_trace._Locks.__setitem__ = counting
started = time.perf_counter()
import torch
cell = time.perf_counter() - started
import_trace._Locks.__setitem__ = note

def per_call(function, *arguments, loops=20000):
    times = []
    for _ in range(7):
        started = time.perf_counter()
        for _ in range(loops):
            function(*arguments)
        times.append((time.perf_counter() - started) / loops)
    return min(times)

class Lock: pass

def package(into, name):
    lock = Lock()
    into[name] = weakref.ref(lock)

module = per_call(package, locks, "torch.cuda") - per_call(package, plain, "torch.cuda")
# The dearer of the two: while the driver's library is not loaded, the loader looks for it.
library, driver._library = driver._library, None
known, driver.LIBRARY = driver.LIBRARY, "libcuda-not-loaded.so.1"
top = per_call(package, locks, "torch", loops=500) - per_call(package, plain, "torch", loops=500)
driver._library, driver.LIBRARY = library, known
assert counts["imports"] > 500 and counts["packages"] > 10, counts
cost = (counts["imports"] - counts["packages"]) * module + counts["packages"] * top
print(json.dumps({"cell": cell, "cost": cost}))
"""
)


def rows() -> list[Row]:
    measured = script(_SCRIPT, os.environ)
    note = "the cell `import torch`; the hooks' time added up from the imports that it makes"
    return [
        Row.at_most(
            "knowing who initialised CUDA", measured["cost"], measured["cell"], 0.01, "s", note
        )
    ]
