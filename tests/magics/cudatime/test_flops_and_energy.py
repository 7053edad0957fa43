"""``--flops`` and ``--energy``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from IPython.core.error import UsageError

import gpumagic
from gpumagic.magics.cudatime.options import grammar
from gpumagic.magics.cudatime.repeat_options import only_for_energy
from tests.support.shells import Ran

Run = Callable[..., Ran]


def test_operations_in_a_run_of_its_own(ip: Any, run_cell: Run, gpu_work: Any) -> None:
    torch = gpu_work.torch
    ip.user_ns |= {"a": torch.empty(64, 128, device="cuda:0"), "runs": []}
    ip.user_ns["b"] = torch.empty(128, 32, device="cuda:0")
    ran = run_cell("%%cudatime --flops -v once\nruns.append(1)\nc = a @ b")
    once = ip.user_ns["once"]
    assert once.flops == 2 * 64 * 128 * 32
    assert "524 kFLOP per loop" in ran.text
    assert len(ip.user_ns["runs"]) == 2
    assert "c" in ip.user_ns
    run_cell("%%cudatime --flops -n 3 -r 2 -w 0 -q -v many\nruns.append(1)\na @ b")
    assert ip.user_ns["many"].flops == 2 * 64 * 128 * 32, "of one loop"
    assert len(ip.user_ns["runs"]) == 2 + 3 * 2 + 1
    assert "FLOP/s" in str(ip.user_ns["many"])


def test_a_cell_without_operations(run_cell: Run, gpu_work: Any, ip: Any) -> None:
    ip.user_ns["a"] = gpu_work.torch.empty(64, device="cuda:0")
    ran = run_cell("%%cudatime --flops -v none\nb = a + 1")
    assert "torch's counter, which does not count element-wise operations" in ran.text
    assert "FLOP/s" not in ran.text
    assert ip.user_ns["none"].flops == 0
    assert ip.user_ns["none"].peak_share is None


def test_what_is_not_counted_is_said(ip: Any, run_cell: Run, gpu_work: Any) -> None:
    ip.user_ns |= {"torch": gpu_work.torch, "threading": __import__("threading")}
    cell = (
        "x = torch.ones(8, 8)\ny = x @ x\n"
        "t = threading.Thread(target=lambda: x @ x)\nt.start(); t.join()"
    )
    shown = " ".join(run_cell(f"%%cudatime --flops -v timing\n{cell}").text.split())
    assert "FLOPs of other threads are not counted: 1 thread began in this run" in shown
    assert "some of the operations ran on the CPU" in shown
    assert "FLOP/s" not in shown
    assert ip.user_ns["timing"].peak_share is None


def test_joules_of_a_loop(ip: Any, run_cell: Run, gpu_work: Any) -> None:
    ip.user_ns["sleep"] = gpu_work.sleep
    ran = run_cell("%%cudatime --energy -n 1 -r 4 -v timing\nsleep(0.1)")
    timing = ip.user_ns["timing"]
    power = gpumagic.devices()[0].power
    assert timing.power == pytest.approx(power, rel=0.05)
    assert timing.energy == pytest.approx(0.1 * power, rel=0.05)
    assert "per loop" in ran.text
    assert "the whole cuda:0" in ran.text


def test_why_there_is_no_share_of_the_peak(ip: Any, run_cell: Run, gpu_work: Any) -> None:
    torch = gpu_work.torch
    graph, a = torch.cuda.CUDAGraph(), torch.empty(8, 8, device="cuda:0")
    with torch.cuda.graph(graph):
        a.add_(1)
    ip.user_ns |= {"a": a, "half": a.half(), "graph": graph}
    shown = run_cell("%%cudatime --flops\nb = a @ a; c = half @ half").text
    assert "no share of the peak: the operations are in float16 and float32" in shown
    shown = run_cell("%%cudatime --flops\nb = a @ a; graph.replay()").text
    assert "FLOPs of CUDA graphs are not counted: 1 replay in this run" in shown


FURTHER_RUNS = {
    "--flops": "no FLOPs",
    "--flops -n 1 -r 2 -w 0": "no FLOPs",
    "--kernels": "no profile",
    "--kernels -n 1 -r 2 -w 0": "no profile",
    "--energy -n 1 -r 2 -w 0": "no energy",
}


@pytest.mark.parametrize("options", FURTHER_RUNS)
def test_code_that_cannot_run_once_more_has_not_failed(
    ip: Any, run_cell: Run, gpu_work: Any, options: str
) -> None:
    ip.user_ns |= {"left": iter([7] * (2 if "-r" in options else 1)), "w": gpu_work}
    ran = run_cell(f"%%cudatime {options} -v timing\nw.sleep(0.01); next(left)")
    assert ran.error is None
    assert ran.value == (None if "-r" in options else 7)
    option, *_ = options.split()
    says = (
        f"{FURTHER_RUNS[options]}: the code raised StopIteration when it was run once more; leave "
        f"{option} out, or write code that can run again"
    )
    assert " ".join(ran.text.split()).count(says) + " ".join(ran.stdout.split()).count(says) == 1
    assert says in ip.user_ns["timing"].notes
    ip.user_ns["left"] = iter([7, 7])
    ran = run_cell(f"%%cudatime {options} -q\nw.sleep(0.01); next(left);")
    assert (ran.error, ran.text, ran.stdout) == (None, "", "")


@pytest.mark.parametrize("option", ["--flops", "--kernels"])
def test_an_interrupt_of_a_further_run_says_which(
    ip: Any, run_cell: Run, gpu_work: Any, option: str
) -> None:
    ip.user_ns["runs"] = []
    cell = "runs.append(1)\nif len(runs) > 1:\n    raise KeyboardInterrupt"
    ran = run_cell(f"%%cudatime {option}\n{cell}", raising=False)
    assert isinstance(ran.error, KeyboardInterrupt)
    says = f"interrupted in the further run for {option}; the timed run is complete"
    assert says in " ".join(ran.stdout.split())


def test_energy_says_that_its_loops_are_not_cold(ip: Any, run_cell: Run, gpu_work: Any) -> None:
    ip.user_ns["sleep"] = gpu_work.sleep
    shown = run_cell("%%cudatime --energy --cold -r 2\nsleep(0.1)").text
    assert "the loops of the energy ran without flushing the L2 cache" in shown


def test_energy_alone_says_that_the_code_is_repeated(ip: Any, run_cell: Run, gpu_work: Any) -> None:
    ip.user_ns["sleep"] = gpu_work.sleep
    says = "repeated for its energy, as by --repeat: the code assigns no variables"
    assert says in run_cell("%%cudatime --energy\nassigned = 5; sleep(0.1)").text
    assert "assigned" not in ip.user_ns


@pytest.mark.parametrize("asked", ["--repeat", "-n 3", "-r 3", "-s 'x = 1'", "--cold"])
def test_code_that_is_repeated_anyway_needs_no_remark(asked: str) -> None:
    assert not only_for_energy(grammar().read(f"--energy {asked} x").options)
    assert only_for_energy(grammar().read("--energy -q x").options)
    assert not only_for_energy(grammar().read("x").options)


def test_no_energy_without_gpu_work(ip: Any, run_cell: Run, gpu_work: Any) -> None:
    """It is not run once more either."""
    ip.user_ns["runs"] = runs = []
    ran = run_cell("%%cudatime --energy -n 1 -r 4 -w 0 -v timing\nruns.append(1)")
    assert len(runs) == 4
    assert "no energy: no sign of GPU work was seen" in ran.text
    assert (ip.user_ns["timing"].energy, ip.user_ns["timing"].power) == (None, None)


def test_no_energy_without_a_gpu(run_cell: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    from gpumagic.cuda import failure, torch_cuda

    monkeypatch.setattr(torch_cuda, "contexts", lambda: ())
    monkeypatch.setattr(failure, "why_no_gpu", lambda: "this machine has no GPU")
    monkeypatch.setattr(torch_cuda, "initialized", lambda: False)
    ran = run_cell("%%cudatime --energy -n 1 -r 4 -w 0\n1")
    assert "no energy: this machine has no GPU" in ran.text


def test_refused_where_there_are_several_results(run_cell: Run, gpu_work: Any) -> None:
    with pytest.raises(UsageError, match="--on does not go with"):
        run_cell("%%cudatime --on cpu,cuda:0 --flops\n1")
