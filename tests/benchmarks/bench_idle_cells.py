"""The automatic lines: what ``%cudatime on`` and ``%gpumem on`` cost a cell that uses no GPU."""

from __future__ import annotations

from collections.abc import Iterator

from gpumagic.wording import plural
from tests.benchmarks.process import script
from tests.benchmarks.row import Row
from tests.virtual_gpu import Scenario, environment

#: Seconds that a cell may take longer.
LIMIT = 0.3e-3

# The same cell with and without, in turns, on the same shell: of each the least of the turns'
# medians, as other processes make them longer for a while.
_SCRIPT = """
import torch
for i in range(torch.cuda.device_count()):
    torch.ones(1, device=f"cuda:{i}")
ip.run_line_magic("load_ext", "gpumagic")
times = {"off": [], "on": []}
for _ in range(8):
    for switch in times:
        ip.run_line_magic(sys.argv[1], f"{switch} -q")
        times[switch].append(median(lambda: ip.run_cell("x = 1", store_history=True), 40))
print(json.dumps({switch: min(each) for switch, each in times.items()}))
"""


def rows() -> Iterator[Row]:
    for magic, devices, profile in (
        *(("cudatime", 1, None), ("cudatime", 2, None), ("gpumem", 1, None), ("gpumem", 8, None)),
        *(("cudatime", 1, "h100"), ("cudatime", 2, "h100")),
    ):
        scenario = Scenario(devices=devices, **({} if profile is None else {"profile": profile}))
        found = script(_SCRIPT, environment(scenario), magic)
        name = f"%{magic} on, an idle cell, {plural(devices, 'device')} in use"
        if profile is not None:  # whatever profile the other rows run under
            name += ", where calls cost what an H200's do"
        note = f"0.3 ms more than the {found['off'] * 1e6:.0f} µs without it"
        yield Row(name, found["on"] - found["off"], LIMIT, note, 1.0)
