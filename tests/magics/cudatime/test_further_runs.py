"""``--kernels``, ``--trace``, ``--nvtx``, ``--flops`` and ``--energy``: further runs of the code.

The virtual GPU refuses CUPTI.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import gpumagic
from gpumagic.results.timing.cuda_timing import CudaTiming
from tests.support.shells import Ran

Run = Callable[..., Ran]


def test_a_profiler_that_sees_nothing_says_so(gpu_work: Any, ip: Any, run_cell: Run) -> None:
    ip.user_ns.update(gpu_work=gpu_work, runs=[])
    ran = run_cell("%%cudatime --kernels -v t\nruns.append(1)\ngpu_work.sleep(0.001)\nlen(runs)")
    assert ran.text.count("wall") == 1
    assert "torch's profiler cannot see the GPU here" in ran.text
    assert ip.user_ns["runs"] == [1, 1]
    assert ran.value == 2, "the value, as the variables, is the last run's"
    timing = ip.user_ns["t"]
    assert not timing.kernels.visible
    assert timing.wall.median < 1, "the profiler's own time is not in it"
    timing = run_cell("%cudatime --kernels -o -q -n 2 -r 2 -w 0 runs").value
    assert (timing.loops, timing.kernels.visible) == (2, False)


def test_a_trace_for_perfetto(gpu_work: Any, run_cell: Run, tmp_path: Path) -> None:
    ran = run_cell(f"%%cudatime --trace '{tmp_path}/t.json'\nimport torch\ntorch.ones(3) + 1;")
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    assert "aten::add" in {event["name"] for event in events}
    assert f"trace written to {tmp_path}/t.json" in ran.text
    run_cell(f"%cudatime -q --trace '{tmp_path}/t.json.gz' 1")
    assert (tmp_path / "t.json.gz").read_bytes().startswith(b"\x1f\x8b")


def test_the_profiler_makes_no_context(kernel: Any) -> None:
    k = kernel()
    k.run("runs = []")
    reply = k.run("%cudatime --kernels --nvtx mine runs.append(1)")
    assert "--kernels: no profile: torch is not imported" in reply.shown
    assert k.value("runs") == [1], "without torch it is not run again"
    k.run("import torch\nx = torch.zeros(9, device='cuda:1')")
    k.run("%cudatime --kernels -q x.add_(1); assert torch.cuda.current_device() == 0")
    contexts = "[torch._C._cuda_hasPrimaryContext(i) for i in range(2)]"
    assert k.value(contexts) == [False, True]


def test_an_nvtx_range_is_around_the_code(
    gpu_work: Any, run_cell: Run, ip: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    nvtx, ranges = gpu_work.torch.cuda.nvtx, []
    push, pop = nvtx.range_push, nvtx.range_pop
    monkeypatch.setattr(nvtx, "range_push", lambda name: (ranges.append(name), push(name)))
    monkeypatch.setattr(nvtx, "range_pop", lambda: (ranges.append("pop"), pop()))
    ip.user_ns["ranges"] = ranges
    run_cell("%cudatime -q --nvtx mine ranges.append('code')")
    run_cell("%cudatime -q --nvtx failing 1 / 0", raising=False)
    run_cell("%cudatime -q --nvtx looped -n 2 -r 2 -w 0 1")
    assert ranges == ["mine", "code", "pop", "failing", "pop", "looped", "pop"]


def test_operations_in_a_run_of_its_own(ip: Any, run_cell: Run, gpu_work: Any) -> None:
    torch = gpu_work.torch
    ip.user_ns |= {"a": torch.empty(64, 128, device="cuda:0"), "runs": []}
    ip.user_ns["b"] = torch.empty(128, 32, device="cuda:0")
    ran = run_cell("%%cudatime --flops -v once\nruns.append(1)\nc = a @ b")
    once = ip.user_ns["once"]
    assert once.flops == 2 * 64 * 128 * 32
    assert "524 kFLOP ·" in ran.text or "524 kFLOP\n" in ran.text
    assert len(ip.user_ns["runs"]) == 2
    assert "c" in ip.user_ns
    run_cell("%%cudatime --flops -n 3 -r 2 -w 0 -q -v many\nruns.append(1)\na @ b")
    assert ip.user_ns["many"].flops == 2 * 64 * 128 * 32, "of one loop"
    assert len(ip.user_ns["runs"]) == 2 + 3 * 2 + 1
    ip.user_ns["linear"] = torch.nn.Linear(128, 32, device="cuda:0")
    run_cell("%%cudatime --flops -q -v backward\nlinear(a).sum().backward()")
    assert ip.user_ns["backward"].flops == 2 * (2 * 64 * 128 * 32), "forward, and the weight's"


def test_joules_of_a_loop(ip: Any, run_cell: Run, gpu_work: Any) -> None:
    ip.user_ns["sleep"] = gpu_work.sleep
    ran = run_cell("%%cudatime --energy -n 1 -r 4 -v timing\nsleep(0.1)")
    timing = ip.user_ns["timing"]
    power = gpumagic.devices()[0].power
    assert timing.power == pytest.approx(power, rel=0.05)
    assert timing.energy == pytest.approx(0.1 * power, rel=0.05)
    assert "per loop" in ran.text
    assert "energy of the whole of cuda:0" in ran.text
    ip.user_ns["runs"] = runs = []
    ran = run_cell("%%cudatime --energy -n 1 -r 4 -w 0 -v timing\nruns.append(1)")
    assert len(runs) == 4, "without GPU work it is not run once more"
    assert "no energy: no GPU work was seen" in ran.text
    assert (ip.user_ns["timing"].energy, ip.user_ns["timing"].power) == (None, None)


@pytest.mark.parametrize(
    "options",
    [
        *("--flops", "--kernels", "--flops -n 1 -r 2 -w 0", "--kernels -n 1 -r 2 -w 0"),
        "--energy -n 1 -r 2 -w 0",
    ],
)
def test_code_that_cannot_run_once_more_has_not_failed(
    ip: Any, run_cell: Run, gpu_work: Any, options: str
) -> None:
    ip.user_ns |= {"left": iter([7] * (2 if "-r" in options else 1)), "w": gpu_work}
    ran = run_cell(f"%%cudatime {options} -v timing\nw.sleep(0.01); next(left)")
    assert ran.error is None
    assert ran.value == (None if "-r" in options else 7)
    option, *_ = options.split()
    says = (
        f"{option}: the further run raised StopIteration; leave {option} out, or write code that "
        "can run again"
    )
    assert " ".join(ran.text.split()).count(says) == 1
    assert says in ip.user_ns["timing"].notes


def test_a_cell_that_raises_is_not_run_again(run_cell: Run, gpu_work: Any, ip: Any) -> None:
    ip.user_ns["runs"] = []
    ran = run_cell("%%cudatime --kernels --flops\nruns.append(1)\n1 / 0", raising=False)
    assert isinstance(ran.error, ZeroDivisionError)
    assert ip.user_ns["runs"] == [1]
    assert "wall" in ran.text


@pytest.mark.parametrize("option", ["--flops", "--kernels"])
def test_an_interrupt_of_a_further_run_says_which(
    ip: Any, run_cell: Run, gpu_work: Any, option: str
) -> None:
    ip.user_ns["runs"] = []
    cell = "runs.append(1)\nif len(runs) > 1:\n    raise KeyboardInterrupt"
    ran = run_cell(f"%%cudatime {option}\n{cell}", raising=False)
    assert isinstance(ran.error, KeyboardInterrupt)
    says = f"{option}: the further run was interrupted; the timed run is complete"
    assert says in " ".join(ran.text.split())
    assert "wall" in ran.text


@pytest.mark.parametrize(("options", "repeats"), [("-n 1 -r 7 -w 1", 7), ("--kernels", 1)])
def test_an_interrupt_after_the_timed_runs_leaves_a_whole_result(
    ip: Any, run_cell: Run, gpu_work: Any, tmp_path: Path, options: str, repeats: int
) -> None:
    """Of the runs that are queued after the repeats, or of a further run."""
    whole = repeats + (repeats == 7)  # with the warm-up
    ip.user_ns |= {"runs": [], "x": gpu_work.torch.ones(9, device="cuda"), "whole": whole}
    cell = "runs.append(x.add_(1))\nif len(runs) > whole:\n    raise KeyboardInterrupt"
    path = tmp_path / "step.json"
    ran = run_cell(f"%%cudatime {options} --save {path}\n{cell}", raising=False)
    assert isinstance(ran.error, KeyboardInterrupt)
    assert len(ip.user_ns["runs"]) == whole + 1
    assert "stopped" not in ran.text
    timing = gpumagic.load(path)
    assert isinstance(timing, CudaTiming)
    assert (timing.repeat, timing.partial) == (repeats, False)
