"""``%cudatime on``: what it costs a cell that uses no GPU."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tests.benchmarks.process import SHELL, reason, script
from tests.benchmarks.row import Row
from tests.virtual_gpu import Scenario, environment

#: Seconds that a cell may take longer.
LIMIT = 0.3e-3

# The same cell with and without, in turns, on the same shell: the difference of the medians.
_SCRIPT = (
    SHELL
    + """
import torch
devices = int(sys.argv[1])
for i in range(devices):
    torch.ones(1, device=f"cuda:{i}")
ip.run_line_magic("load_ext", "gpumagic")
switches = {
    "off": lambda: ip.run_line_magic("cudatime", "off -q"),
    "on": lambda: ip.run_line_magic("cudatime", "on -q"),
}
times = {name: [] for name in switches}
for _ in range(8):
    for name, switch in switches.items():
        switch()
        for _ in range(40):
            begun = time.perf_counter()
            ip.run_cell("x = 1", store_history=True)
            times[name].append(time.perf_counter() - begun)
print(json.dumps({name: statistics.median(each) for name, each in times.items()}))
"""
)

_PEER = (
    SHELL
    + """
import contextlib, io
times = {"off": [], "on": []}
for _ in range(8):
    for name, magic in (("off", "unload_ext"), ("on", "load_ext")):
        with contextlib.redirect_stdout(io.StringIO()):
            ip.run_line_magic(magic, "autotime")
            for _ in range(40):
                begun = time.perf_counter()
                ip.run_cell("x = 1", store_history=True)
                times[name].append(time.perf_counter() - begun)
print(json.dumps({name: statistics.median(each) for name, each in times.items()}))
"""
)


def rows() -> Iterable[Row]:
    """The rows of the automatic mode."""
    yield from _ours()
    yield from _peer()


def _ours() -> Iterator[Row]:
    for devices in (0, 1, 4):
        found = script(_SCRIPT, environment(Scenario(devices=4)), str(devices))
        name = f"%cudatime on, a cell without GPU work, {devices} device(s) in use"
        more, without = found["on"] - found["off"], found["off"]
        if devices <= 1:
            note = f"0.3 ms more than without ({without * 1e6:.0f} µs)"
            yield Row.at_most(name, more, LIMIT, 1.0, note=note)
        else:  # each more device is one more reading of its allocator's counters
            yield Row.shown(name, more, LIMIT, note="0.3 ms, the bar for one device in use")


def _peer() -> Iterator[Row]:
    name = "ipython-autotime, the same cell (wall time only, one line each)"
    try:
        found = script(_PEER, environment(Scenario(devices=4)))
    except RuntimeError as error:
        yield Row.missing(name, reason(error))
        return
    yield Row.shown(
        name,
        found["on"] - found["off"],
        LIMIT,
        note="0.3 ms",
    )
