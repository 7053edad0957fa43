"""``%%cudatime --kernels``, ``--trace`` and ``--nvtx``. The virtual GPU refuses CUPTI."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gpumagic.results import CudaTiming
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


def test_a_cell_that_uses_the_profiler_itself(ip: Any, gpu_work: Any, run_cell: Any) -> None:
    ip.user_ns.update(torch=gpu_work.torch)
    ran = run_cell(
        "%%cudatime --kernels -v t\n"
        "with torch.profiler.profile() as profile:\n    torch.ones(3) + 1\n"
        "sum(event.key == 'aten::add' for event in profile.key_averages())"
    )
    assert ran.value == 1
    problem = "no profile: the code starts torch's profiler itself"
    assert ran.stdout.count(problem) == 1
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
