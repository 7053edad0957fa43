"""``--name`` and ``--compare``, ``--kernels``, ``--trace`` and ``--nvtx`` in a real shell."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from IPython.core.error import UsageError

from gpumagic.results import Comparison, CudaTiming

# Comparing.


def test_kept_results_side_by_side(run_cell: Any, clock: None) -> None:
    run_cell("import time\n%cudatime -q --name baseline -n 1 -r 5 time.sleep(0.1)")
    ran = run_cell("%%cudatime --name faster -q -n 1 -r 5\ntime.sleep(0.001)")
    assert ran.text == ""
    compared = run_cell("%cudatime --compare -o").value
    assert isinstance(compared, Comparison)
    assert [entry.name for entry in compared] == ["baseline", "faster"]
    assert compared["faster"].verdict == "faster"
    assert "× baseline" in run_cell("%cudatime --compare").text
    assert run_cell("%cudatime --compare;").text == ""


def test_names_choose_and_the_first_is_the_baseline(run_cell: Any) -> None:
    for name in ("a", "b", "c"):
        run_cell(f"%cudatime -q --name {name} 1 + 1")
    for words, names in (("", "abc"), ("c,a", "ca"), ("b c", "bc"), ("c, b", "cb")):
        compared = run_cell(f"%cudatime --compare -q -o {words}").value
        assert [entry.name for entry in compared] == list(names)


def test_names_with_a_blank(run_cell: Any) -> None:
    run_cell("%cudatime -q --name one 1")
    run_cell("import torch\n%cudatime --on cpu,cuda:0 -q -n 1 -r 1 -w 0 --name it 1")
    for words in ("it cpu,it cuda:0", "'it cpu' 'it cuda:0'", "'it cpu', it cuda:0"):
        compared = run_cell(f"%cudatime --compare -q -o {words}").value
        assert [entry.name for entry in compared] == ["it cpu", "it cuda:0"]
    error = run_cell("%cudatime --compare one it", raising=False).error
    assert str(error).endswith("no result is named 'it'; there are one, 'it cpu', 'it cuda:0'")
    error = run_cell("%cudatime --compare one 'it cpu", raising=False).error
    assert "No closing quotation" in str(error)


def test_a_name_is_given_anew(run_cell: Any) -> None:
    for statement in ("1 + 1", "__import__('time').sleep(0.01)"):
        run_cell(f"%cudatime -q --name a {statement}")
    run_cell("%cudatime -q --name b 1")
    assert run_cell("%cudatime --compare -q -o").value["a"].timing.wall.median > 0.01


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("%cudatime --compare", "it takes two named results, and there is only one"),
        ("%cudatime --compare one", "it takes two named results"),
        ("%cudatime --compare oen", "no result is named 'oen'; did you mean one?"),
        ("%cudatime --compare other", "no result is named 'other'; there is one"),
        ("%cudatime --name a,b 1", "'a,b' is not a name"),
        ("%%cudatime --compare\n1", "write %cudatime --compare"),
        ("%cudatime --trace /no/such/place.json 1", "there is no folder /no/such"),
        ("%cudatime --trace / 1", "that is a folder"),
    ],
)
def test_bad_lines_are_one_line(line: str, says: str, run_cell: Any) -> None:
    run_cell("%cudatime -q --name one 1")
    error = run_cell(line, raising=False).error
    assert type(error) is UsageError
    assert says in str(error)
    assert "\n" not in str(error)


def test_nothing_is_kept_without_a_name(run_cell: Any) -> None:
    run_cell("%cudatime -q 1")
    error = run_cell("%cudatime --compare", raising=False).error
    assert "and there is none" in str(error)


# Where did it go? The virtual GPU refuses CUPTI, as many containers do.


def test_a_profiler_that_sees_nothing_says_so(work: Any, ip: Any, run_cell: Any) -> None:
    ip.user_ns.update(work=work, runs=[])
    ran = run_cell("%%cudatime --kernels -v t\nruns.append(1)\nwork.sleep(0.001)\nlen(runs)")
    assert ran.text.count("Wall") == 1
    assert "torch's profiler cannot see the GPU here" in ran.text
    assert ip.user_ns["runs"] == [1, 1]
    assert ran.value == 2, "the value, as the variables, is the last run's"
    timing = ip.user_ns["t"]
    assert isinstance(timing, CudaTiming)
    assert timing.kernels is not None
    assert not timing.kernels.visible
    assert timing.wall.median < 1, "the profiler's own time is not in it"


def test_the_report_goes_with_the_result(work: Any, run_cell: Any) -> None:
    run_cell("x = 1")
    timing = run_cell("%cudatime --kernels -o -q -n 2 -r 2 x").value
    assert (timing.loops, timing.kernels.visible) == (2, False)
    run_cell("%cudatime --kernels -q --name a x\n%cudatime -q --name b x")
    assert run_cell("%cudatime --compare -q -o").value["a"].timing.kernels is not None


def test_a_trace_for_perfetto(work: Any, run_cell: Any, tmp_path: Path) -> None:
    ran = run_cell(f"%%cudatime --trace {tmp_path}/t.json\nimport torch\ntorch.ones(3) + 1;")
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    assert "aten::add" in {event["name"] for event in events}
    assert f"trace written to {tmp_path}/t.json" in ran.text
    run_cell(f"%cudatime -q --trace {tmp_path}/t.json.gz 1")
    assert (tmp_path / "t.json.gz").read_bytes().startswith(b"\x1f\x8b")


def test_awaiting_code_is_profiled_too(work: Any, run_cell: Any, ip: Any) -> None:
    ip.user_ns["runs"] = []
    source = "--kernels -v t\nimport asyncio\nruns.append(await asyncio.sleep(0, 3))\nruns"
    assert run_cell(f"%%cudatime {source}").value == [3, 3]
    assert run_cell("t.kernels.visible").value is False


def test_a_cell_that_raises_is_not_run_again(work: Any, run_cell: Any, ip: Any) -> None:
    ip.user_ns["runs"] = []
    ran = run_cell("%%cudatime --kernels\nruns.append(1)\n1 / 0", raising=False)
    assert isinstance(ran.error, ZeroDivisionError)
    assert ip.user_ns["runs"] == [1]
    ran = run_cell("%%cudatime --kernels\nruns.append(1)\n1 / (len(runs) < 3)", raising=False)
    assert isinstance(ran.error, ZeroDivisionError), "the second run's own exception passes"
    assert "Wall" in ran.text
    assert run_cell("%cudatime --kernels -q -o 1").value.kernels is not None, "and it is closed"


def test_the_users_own_profiler_goes_on(work: Any, run_cell: Any, ip: Any) -> None:
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
    k.run("import torch\nx = torch.zeros(9, device='cuda:1')", timeout=120)
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


# NVTX: a tool's library, as Nsight's is, hears of the ranges.

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
    subprocess.run(
        [sys.executable, "-c", RANGES],
        env={
            **child_environment(),
            "NVTX_INJECTION64_PATH": str(library),
            "LISTENER_FILE": str(heard),
        },
        check=True,
        timeout=120,
    )
    ranges = ["push mine", "push inner", "pop", "pop", "push looped", "pop", "push failing", "pop"]
    assert heard.read_text().splitlines() == ranges
