"""``%%cudatime --kernels``, ``--trace`` and ``--nvtx``. The virtual GPU refuses CUPTI."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gpumagic.results import CudaTiming
from gpumagic.timing import profiler
from tests.support import forks


def test_a_profiler_that_sees_nothing_says_so(gpu_work: Any, ip: Any, run_cell: Any) -> None:
    ip.user_ns.update(gpu_work=gpu_work, runs=[])
    ran = run_cell("%%cudatime --kernels -v t\nruns.append(1)\ngpu_work.sleep(0.001)\nlen(runs)")
    assert ran.text.count("wall") == 1
    assert "torch's profiler cannot see the GPU here" in ran.text
    assert ip.user_ns["runs"] == [1, 1]
    assert ran.value == 2, "the value, as the variables, is the last run's"
    timing = ip.user_ns["t"]
    assert isinstance(timing, CudaTiming)
    assert timing.kernels is not None
    assert not timing.kernels.visible
    assert timing.wall.median < 1, "the profiler's own time is not in it"


def test_the_report_goes_with_the_result(gpu_work: Any, run_cell: Any) -> None:
    run_cell("x = 1")
    timing = run_cell("%cudatime --kernels -o -q -n 2 -r 2 x").value
    assert (timing.loops, timing.kernels.visible) == (2, False)
    run_cell("%cudatime --kernels -q --name a x\n%cudatime -q --name b x")
    assert run_cell("%cudatime --compare -q -o").value["a"].timing.kernels is not None


def test_lines_have_no_busy_times_where_the_profiler_sees_none(
    gpu_work: Any, ip: Any, run_cell: Any
) -> None:
    ip.user_ns.update(w=gpu_work, runs=[])
    ran = run_cell("%%cudatime --lines --kernels -v t\nw.sleep(.03)\nruns.append(1)")
    assert ip.user_ns["runs"] == [1, 1]
    header = next(row for row in ran.text.splitlines() if row.startswith("Line"))
    assert header.split() == ["Line", "Hits", "GPU", "Host", "Source"]
    assert ran.text.count("torch's profiler cannot see the GPU here") == 1, "one line says why"
    assert "no busy times of lines: torch's profiler cannot see the GPU here (CUPTI" in ran.text
    timing = ip.user_ns["t"]
    assert timing.kernels is not None
    assert not timing.kernels.visible
    assert [(line.busy, line.kernels) for line in timing.lines] == [(None, None)] * 2
    assert timing.lines[0].gpu == pytest.approx(0.03, rel=0.02)


def test_lines_are_delivered_whatever_the_second_run_does(
    gpu_work: Any, ip: Any, run_cell: Any
) -> None:
    ip.user_ns.update(w=gpu_work, runs=[])
    cell = "%%cudatime --lines --kernels -v t\nruns.append(1)\n1 / (len(runs) < 2)"
    ran = run_cell(cell)
    assert ran.value == 1, "the timed run has succeeded"
    assert "no profile: the code raised ZeroDivisionError: division by zero" in ran.text
    assert "runs.append(1)" in ran.text
    assert len(ip.user_ns["t"].lines) == 2
    ran = run_cell("%%cudatime --lines --kernels\n1 / 0", raising=False)
    assert isinstance(ran.error, ZeroDivisionError)
    assert "1 / 0" in ran.text
    run_cell("import torch\nprofile = torch.profiler.profile()\nprofile.__enter__()\ntorch.ones(1)")
    try:
        ran = run_cell("%%cudatime --lines --kernels -o\nruns.append(3)")
    finally:
        run_cell("profile.__exit__(None, None, None)")
    problem = "no profile: torch's profiler is running already"
    assert ran.text.count(problem) == 1
    assert problem in ran.value.notes
    assert ip.user_ns["runs"].count(3) == 1


def test_a_cell_that_uses_the_profiler_itself(ip: Any, gpu_work: Any, run_cell: Any) -> None:
    ip.user_ns.update(torch=gpu_work.torch)
    ran = run_cell(
        "%%cudatime --lines --kernels -v t\n"
        "with torch.profiler.profile() as profile:\n    torch.ones(3) + 1\n"
        "sum(event.key == 'aten::add' for event in profile.key_averages())"
    )
    assert ran.value == 1
    problem = "no profile: the code starts torch's profiler itself"
    assert ran.text.count(problem) == 1
    assert ip.user_ns["t"].kernels is None
    assert ran.stderr == ""


def test_a_trace_for_perfetto(gpu_work: Any, run_cell: Any, tmp_path: Path) -> None:
    ran = run_cell(f"%%cudatime --trace '{tmp_path}/t.json'\nimport torch\ntorch.ones(3) + 1;")
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    assert "aten::add" in {event["name"] for event in events}
    assert f"trace written to {tmp_path}/t.json" in ran.text
    run_cell(f"%cudatime -q --trace '{tmp_path}/t.json.gz' 1")
    assert (tmp_path / "t.json.gz").read_bytes().startswith(b"\x1f\x8b")


def test_awaiting_code_is_profiled_too(gpu_work: Any, run_cell: Any, ip: Any) -> None:
    ip.user_ns["runs"] = []
    source = "--kernels -v t\nimport asyncio\nruns.append(await asyncio.sleep(0, 3))\nruns"
    assert run_cell(f"%%cudatime {source}").value == [3, 3]
    assert run_cell("t.kernels.visible").value is False


def as_a_gpu_would(trace: list[dict[str, Any]]) -> None:
    """Add to a real trace what CUPTI tells of it: for each addition a launch, and a kernel later.

    torch's own events stay, with the profiler's clock. The kernels take 100 µs each and run one
    after the other when all have been launched.
    """
    added = [event for event in trace if event.get("name") == "aten::add_"]
    end = max(float(e["ts"]) + float(e["dur"]) for e in trace if "dur" in e)
    for number, event in enumerate(sorted(added, key=lambda event: float(event["ts"]))):
        ids = {"External id": event["args"].get("External id"), "correlation": 4000 + number}
        call = {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": event["pid"]}
        call |= {"tid": event["tid"], "ts": float(event["ts"]) + 0.1, "dur": 0.1}
        trace.append({**call, "args": {**ids, "cbid": 211}})
        kernel = {"ph": "X", "cat": "kernel", "name": "add", "pid": 0, "tid": 7, "dur": 100.0}
        kernel["ts"] = end + 100 * number
        args = {**ids, "device": 0, "context": 1, "stream": 7, "grid": [1, 1, 1]}
        trace.append({**kernel, "args": args})


def test_lines_have_busy_times_where_the_profiler_sees_the_gpu(
    ip: Any, run_cell: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the real clocks of the profiler and of the host: the lines sleep beside what they do."""

    def read(file: Any, **options: Any) -> Any:
        found = json.loads(file.read(), **options)
        as_a_gpu_would(found["traceEvents"])
        return found

    monkeypatch.setattr(profiler.json, "load", read)
    run_cell("import time, torch\nx = torch.zeros(8, device='cuda')\nwait = .02")
    run_cell(
        "def step():\n    time.sleep(wait); x.add_(1)\n    time.sleep(wait)\n"
        "class Slow(torch.autograd.Function):\n"
        "    @staticmethod\n    def forward(ctx, y):\n        return y * 2\n"
        "    @staticmethod\n    def backward(ctx, gradient):\n"
        "        time.sleep(wait); x.add_(1); time.sleep(wait)\n        return gradient"
    )
    ran = run_cell(
        "%%cudatime --lines --kernels -v t -f step\n"
        "for i in range(3):\n"
        "    time.sleep(wait); x.add_(1); time.sleep(wait)\n"
        "    time.sleep(wait)\n"
        "step(); step()\n"
        "y = Slow.apply(torch.ones(8, device='cuda', requires_grad=True)).sum()\n"
        "time.sleep(wait)\n"
        "y.backward()"
    )
    timing = ip.user_ns["t"]
    assert timing.kernels.count == 6
    found = {line.line: line for line in timing.lines}
    assert {number: line.kernels for number, line in found.items()} == {
        **dict.fromkeys((2, 4, 6, 7), 0),
        3: 3,
        5: 2,
        8: 1,
    }
    assert found[3].busy == pytest.approx(300e-6)
    assert found[5].busy == pytest.approx(200e-6)
    assert [line.kernels for line in timing.lines.functions[0].lines] == [2, 0]
    assert timing.lines.between.busy == 0.0
    whole = sum(line.busy for line in timing.lines)
    assert whole == pytest.approx(timing.kernels.busy[0])
    header = next(row for row in ran.text.splitlines() if row.startswith("Line"))
    assert "Busy" in header.split(), "as wide as this terminal is; what fits less is left out"
    assert "kernels, as many as launched" in ran.text, "and the kernels by themselves"


def test_a_cell_that_raises_is_not_run_again(gpu_work: Any, run_cell: Any, ip: Any) -> None:
    ip.user_ns["runs"] = []
    ran = run_cell("%%cudatime --kernels\nruns.append(1)\n1 / 0", raising=False)
    assert isinstance(ran.error, ZeroDivisionError)
    assert ip.user_ns["runs"] == [1]
    ran = run_cell("%%cudatime --kernels\nruns.append(1)\n1 / (len(runs) < 3)")
    assert ip.user_ns["runs"] == [1, 1, 1], "the second run may fail"
    assert "wall" in ran.text
    assert run_cell("%cudatime --kernels -q -o 1").value.kernels is not None, "and it is closed"


def test_the_users_own_profiler_goes_on(gpu_work: Any, run_cell: Any, ip: Any) -> None:
    """A second profiler would end the first, with its records."""
    ip.user_ns["runs"] = []
    run_cell("import torch\nprofile = torch.profiler.profile()\nprofile.__enter__()\ntorch.ones(1)")
    try:
        ran = run_cell("%cudatime --kernels runs.append(1)")
    finally:
        run_cell("torch.zeros(1)\nprofile.__exit__(None, None, None)")
    assert "no profile: torch's profiler is running already" in ran.stdout
    assert ip.user_ns["runs"] == [1]
    names = {event.name for event in ip.user_ns["profile"].events()}
    assert {"aten::ones", "aten::zeros"} <= names


def test_the_profiler_makes_no_context(kernel: Any) -> None:
    k = kernel()
    k.run("import torch\nx = torch.zeros(9, device='cuda:1')")
    k.run("%cudatime --kernels -o -q x.add_(1); assert torch.cuda.current_device() == 0")
    contexts = "[torch._C._cuda_hasPrimaryContext(i) for i in range(2)]"
    assert k.value(contexts) == [False, True]


def test_without_torch_the_code_is_not_run_again(kernel: Any) -> None:
    k = kernel()
    k.run("runs = []")
    reply = k.run("%cudatime --kernels --nvtx mine runs.append(1)")
    assert "no profile: torch is not imported" in reply.stdout
    assert "no NVTX range: torch is not imported" in reply.stdout
    assert k.value("runs") == [1]
    # and a comparison in a notebook comes with a picture
    pytest.importorskip("matplotlib")
    k.run("%cudatime -q --name a -n 1 -r 4 1\n%cudatime -q --name b -n 1 -r 4 sum(range(99))")
    outputs = k.run("%cudatime --compare").outputs
    assert any("image/png" in output.get("data", {}) for output in outputs)


LISTENER = r"""
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

typedef int (*table_getter)(int module, void ****table, unsigned *size);
typedef struct { size_t size; table_getter get; } callbacks;

static void say(const char *what, const char *name) {
    FILE *file = fopen(getenv("LISTENER_FILE"), "a");
    fprintf(file, "%s%s\n", what, name);
    fclose(file);
}
static int push(const char *name) { say("push ", name); return 0; }
static int pop(void) { say("pop", ""); return 0; }

/* The numbers are those of NVTX's nvtxTypes.h: RangePushA 9, RangePop 11, module CORE 1. */
int InitializeInjectionNvtx2(const void *(*export)(unsigned)) {
    const callbacks *found = export(1);
    void ***table;
    unsigned size;
    if (!found || !found->get(1, &table, &size) || size < 12) return 0;
    *table[9] = (void *)push;
    *table[11] = (void *)pop;
    return 1;
}
"""


RANGES = """
from tests.support.shells import run_cell, shell
import torch
torch.ones(1, device="cuda")
with shell() as ip:
    run_cell(ip, "import torch\\n%cudatime -q --nvtx mine torch.cuda.nvtx.range_push('inner')")
    run_cell(ip, "torch.cuda.nvtx.range_pop()")
    run_cell(ip, "%cudatime -q --nvtx looped -n 2 -r 2 1")
    run_cell(ip, "%cudatime -q --nvtx failing 1 / 0", raising=False)
"""


def test_nvtx_ranges_reach_a_tool(child_environment: Any, tmp_path: Path) -> None:
    from tests.virtual_gpu.build import compiler

    (tmp_path / "listener.c").write_text(LISTENER)
    library, heard = tmp_path / "listener.so", tmp_path / "heard"
    command = [*compiler(), "-shared", "-fPIC", "-o", str(library), str(tmp_path / "listener.c")]
    subprocess.run(command, check=True)
    done = forks.run(
        [sys.executable, "-c", RANGES],
        env={
            **child_environment(),
            "NVTX_INJECTION64_PATH": str(library),
            "LISTENER_FILE": str(heard),
        },
    )
    assert done.returncode == 0, done.stderr
    ranges = ["push mine", "push inner", "pop", "pop", "push looped", "pop", "push failing", "pop"]
    assert heard.read_text().splitlines() == ranges
