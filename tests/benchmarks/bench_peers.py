"""The figures that other tools give a cell of known duration, beside ``%%cudatime``'s.

JUmPER (``jumper_extension``) times every cell by the wall clock and samples the devices' use;
TraceML (``traceml-ai``) times the steps of a training loop, each of which is the cell here.
"""

from __future__ import annotations

import json
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from tests.benchmarks.process import SHELL, reason, script
from tests.benchmarks.row import Row
from tests.support.kernels import python_environment
from tests.virtual_gpu import SLEEP_CYCLES_PER_SECOND, Scenario, environment

#: Seconds that a cell keeps the GPU busy.
TRUE = 0.3
#: Steps of TraceML's loop, of which it reports the mean.
STEPS = 6

_WORK = f"torch.cuda._sleep({int(TRUE * SLEEP_CYCLES_PER_SECOND)})"
#: The same work as people write it: the code ends before the GPU does; on a stream of its own; and
#: with a wait.
CELLS = {
    "not waited for": _WORK,
    "on a side stream": f"with torch.cuda.stream(side):\n    {_WORK}",
    "waited for": f"{_WORK}\ntorch.cuda.synchronize()",
}

_SETUP = f"""{SHELL}
import torch
torch.ones(1, device="cuda")
ip.user_ns.update(torch=torch, side=torch.cuda.Stream())
cells = json.loads(sys.argv[1])
found = {{}}
"""
_OURS = (
    _SETUP
    + """
ip.run_line_magic("load_ext", "gpumagic")
for name, cell in cells.items():
    ip.run_cell("%%cudatime -q -v timing\\n" + cell).raise_error()
    found[name] = ip.user_ns["timing"].gpu.median
print(json.dumps(found))
"""
)
#: What the extension says of each cell in its own history, and of the device while it ran.
_JUMPER = (
    _SETUP
    + """
import contextlib, io
with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
    ip.run_line_magic("load_ext", "jumper_extension")
    ip.run_cell("%perfmonitor_start 0.05")
    for cell in cells.values():
        ip.run_cell(cell, store_history=True).raise_error()
        torch.cuda.synchronize()
    ip.run_cell("%perfmonitor_export_cell_history")
    ip.run_cell("%perfmonitor_stop")
frames = [each for each in ip.user_ns.values() if hasattr(each, "columns")]
history = next(each for each in frames if "raw_cell" in each.columns)
for name, cell in cells.items():
    (taken,) = history.loc[history["raw_cell"].str.strip() == cell, "duration"]
    found[name] = float(taken)
print(json.dumps(found))
"""
)
_TRACEML = """\
import json, sys
import torch
import traceml_ai as traceml
traceml.init(mode="auto")
model = torch.nn.Linear(8, 8).cuda()
side = torch.cuda.Stream()
for _ in range({steps}):
    with traceml.trace_step(model):
        exec({cell!r})
    torch.cuda.synchronize()
with open({out!r}, "w") as file:
    json.dump(traceml.final_summary(), file)
"""


def rows() -> Iterable[Row]:
    """The rows, in processes of their own."""
    ours = script(_OURS, environment(Scenario()), json.dumps(CELLS))
    for name, found in ours.items():
        yield Row.within(
            f"%%cudatime, {TRUE * 1e3:.0f} ms {name}", found, TRUE, 0.98, 1.02, note="true duration"
        )
    yield from _jumper()
    yield from _traceml()


def _jumper() -> Iterator[Row]:
    try:
        found = script(_JUMPER, environment(Scenario()), json.dumps(CELLS))
    except RuntimeError as error:
        yield Row.missing("JUmPER's duration of a cell", reason(error))
        return
    for name, taken in found.items():
        note = "true duration; it times cells by the wall clock, until the code ends"
        yield Row.shown(f"JUmPER, {TRUE * 1e3:.0f} ms {name}", taken, TRUE, note=note)


def _traceml() -> Iterator[Row]:
    for name, cell in CELLS.items():
        title = f"TraceML, {TRUE * 1e3:.0f} ms {name}"
        try:
            gpu, host = _step_times(cell)
        except RuntimeError as error:
            yield Row.missing(title, reason(error))
            continue
        note = f"true duration; its step's GPU time, the host's is {host * 1e3:.3g} ms"
        yield Row.shown(title, gpu, TRUE, note=note)


def _step_times(cell: str) -> tuple[float, float]:
    """Seconds of a step by TraceML's summary, on the GPU and on the host.

    Raises:
        RuntimeError: it is not here, or says nothing.
    """
    program = Path(sysconfig.get_path("scripts")) / "traceml"
    if not program.exists():
        raise RuntimeError("traceml is not installed")
    with tempfile.TemporaryDirectory() as folder:
        code, out = Path(folder) / "train.py", Path(folder) / "out.json"
        code.write_text(_TRACEML.format(steps=STEPS, cell=cell, out=str(out)))
        done = subprocess.run(
            [sys.executable, str(program), "run", "--logs-dir", folder, str(code)],
            env=python_environment(environment(Scenario())),
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        if not out.exists():
            raise RuntimeError(f"traceml failed:\n{done.stdout}\n{done.stderr}")
        mean = json.loads(out.read_text())["step_time"]["global"]["average"]
    gpu, host = (mean.get(f"traced_step_time_{clock}_ms") for clock in ("gpu", "cpu"))
    if gpu is None or host is None:
        raise RuntimeError("its summary has no time of a step")
    return gpu / 1e3, host / 1e3
