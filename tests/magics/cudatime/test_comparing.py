"""Results side by side: ``--name`` and ``compare``, and ``--on``."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import psutil
import pytest

import gpumagic
from gpumagic.results.timing.comparison import Comparison
from gpumagic.system import system_files
from tests.support.waiting import until


def test_named_results_side_by_side(run_cell: Any, clock: None) -> None:
    run_cell("import time\n%cudatime -q --name baseline -n 1 -r 6 time.sleep(0.01)")
    ran = run_cell("%%cudatime --name faster -q -n 1 -r 6\ntime.sleep(0.001)")
    assert ran.text == ""
    compared = run_cell("%cudatime compare -o").value
    assert isinstance(compared, Comparison)
    assert [entry.name for entry in compared] == ["baseline", "faster"]
    assert compared["faster"].verdict == "faster"
    assert "Compared with baseline" in run_cell("%cudatime compare").text
    assert run_cell("%cudatime compare;").text == ""
    run_cell("%cudatime -q --name faster -n 1 -r 6 time.sleep(0.02)")
    assert run_cell("%cudatime compare -q -o").value["faster"].verdict == "slower", "anew"


@pytest.mark.skipif(sys.platform != "linux", reason="Linux counts the wait for a processor")
def test_time_without_a_processor_is_named(run_cell: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside another program on the same processor, which has half of the time."""
    monkeypatch.setenv(system_files.ROOT, "")
    line = "%cudatime -o -q -n 1 -r 6 --name {} sum(range(10**6))"
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    burning = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        until(lambda: psutil.Process(burning.pid).cpu_times().user > 0.1)  # Python has started
        waited = run_cell(line.format("busy")).value
    finally:
        burning.kill()
        burning.wait()
        os.sched_setaffinity(0, allowed)
    assert 0.1 < waited.processor_wait < 1
    share = f"{waited.processor_wait * 100:.0f} % of the time"
    said = f"Other programs, threads or a CPU limit kept Python waiting for a CPU core for {share}"
    assert said in str(waited)
    run_cell(line.format("other"))
    assert f"busy: {said}" in run_cell("%cudatime compare").text
    monkeypatch.setenv(system_files.ROOT, "/nowhere")
    unknown = run_cell(line.format("unknown")).value
    assert unknown.processor_wait is None
    assert "for a CPU core" not in str(unknown)


def test_a_failed_run_does_not_replace_a_complete_one(run_cell: Any, ip: Any) -> None:
    ip.user_ns["left"] = iter(range(3))
    run_cell("%cudatime -q --name a -r 2 -n 1 -w 0 1 + 1")
    ran = run_cell("%cudatime --name a -r 6 -n 1 -w 0 next(left)", raising=False)
    assert isinstance(ran.error, StopIteration)
    assert "--name: this run stopped early; 'a' keeps its earlier, complete result" in ran.stdout
    assert run_cell("%cudatime forget -q -o a").value["a"].repeat == 2
    run_cell("%cudatime -q --name a 1 / 0", raising=False)
    assert run_cell("%cudatime forget -q -o").value["a"].partial, "better than none"
    assert run_cell("%cudatime forget").stdout == "there are no named results\n"


def test_names_choose_and_the_first_is_the_baseline(run_cell: Any) -> None:
    for name in ("a", "b", "'c d'"):
        run_cell(f"%cudatime -q --name {name} 1 + 1")
    for words, names in (
        ("", ["a", "b", "c d"]),
        ("b,a", ["b", "a"]),
        ("'c d' b", ["c d", "b"]),
        ("'c d', a", ["c d", "a"]),
    ):
        compared = run_cell(f"%cudatime compare -q -o {words}").value
        assert [entry.name for entry in compared] == names
    error = run_cell("%cudatime compare b", raising=False).error
    assert str(error).endswith("two named results; there is a, b, 'c d'")


# --- one device after the other ------------------------------------------------------------------


def test_on_several_devices(gpu_work: Any, ip: Any, run_cell: Any) -> None:
    source = (
        "%%cudatime --on cpu, cuda:0,cuda:1 -n 2 -r 6 -w 1 -o -v t -s 'x = torch.ones(64, 64)'\n"
        "import gpumagic\n"
        "seen.append((str(x.device), str(gpumagic.device()), torch.cuda.current_device()))\n"
        "y = x @ x"
    )
    ip.user_ns.update(torch=gpu_work.torch, seen=[])
    before = gpumagic.device()
    ran = run_cell(source)
    result = ran.value
    assert isinstance(result, Comparison)
    assert "baseline" in ran.text
    assert [entry.name for entry in result] == ["cpu", "cuda:0", "cuda:1"]
    assert result is ip.user_ns["t"]
    assert {*ip.user_ns["seen"]} == {
        ("cpu", "cpu", 0),
        ("cuda:0", "cuda:0", 0),
        ("cuda:1", "cuda:1", 1),
    }
    assert result["cpu"].timing.gpu is None or result["cpu"].timing.gpu_at_most
    assert {*result["cuda:1"].timing.per_device} <= {1}
    assert gpumagic.device() == before
    assert str(gpu_work.torch.ones(1).device) == "cpu"
    assert gpu_work.torch.cuda.current_device() == 0


def test_code_that_uses_another_device_than_on_says_is_named(gpu_work: Any, run_cell: Any) -> None:
    run_cell("import torch; x = torch.ones(8, device='cuda')")
    assert "on cpu the code used cuda:0" in run_cell("%cudatime --on cpu,cuda:0 -n 9 x + 1").text


def test_code_that_only_the_cpu_ran_has_used_no_gpu(gpu_work: Any, run_cell: Any) -> None:
    """Although CUDA is in use: a time that bounds the GPU's is no sign that it worked."""
    code = "%cudatime --on cpu,cuda:0 -n 9 -r 6 -s 'a = [1.0]' a * 9"
    shown = run_cell(code).text
    assert "the code used" not in shown
    assert next(line for line in shown.splitlines() if line.startswith("cpu")).split()[-2:] == [
        "–",
        "baseline",
    ]


def test_on_that_is_stopped_says_where(gpu_work: Any, ip: Any, run_cell: Any) -> None:
    on = "%%cudatime --on cpu,cuda:0 -n 1 -r 2 -w 0 -v t --name it"
    ip.user_ns["left"] = iter(range(3))
    ran = run_cell(f"{on}\nnext(left)", raising=False)
    assert isinstance(ran.error, StopIteration)
    assert "cuda:0: stopped early" in ran.text
    assert [(each.name, each.timing.partial) for each in ip.user_ns["t"]] == [
        ("cpu", False),
        ("cuda:0", True),
    ]
    assert str(gpu_work.torch.ones(1).device) == "cpu"
    ip.user_ns["left"] = iter(range(1))
    shown = run_cell(f"{on}\nnext(left)", raising=False).text
    assert "stopped early, after" in shown
    assert "no result on cuda:0" in shown
    assert "these are the times on cpu" in shown
    # before there is anything
    ran = run_cell(f"{on}\n1 / 0", raising=False)
    assert isinstance(ran.error, ZeroDivisionError)
    assert ran.text == ""
