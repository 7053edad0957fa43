"""``%%cudatime --on``: the same code on several devices."""

from __future__ import annotations

from typing import Any

import pytest

import gpumagic
from gpumagic.results import Comparison


def test_on_several_devices(gpu_work: Any, ip: Any, run_cell: Any) -> None:
    source = (
        "%%cudatime --on cpu,cuda:0,cuda:1 -n 2 -r 5 -o -q -v t x = torch.ones(64, 64)\n"
        "import gpumagic\n"
        "seen.append((str(x.device), str(gpumagic.device()), torch.cuda.current_device()))\n"
        "y = x @ x"
    )
    ip.user_ns.update(torch=gpu_work.torch, seen=[])
    before = gpumagic.device()
    result = run_cell(source).value
    assert isinstance(result, Comparison)
    assert [entry.name for entry in result] == ["cpu", "cuda:0", "cuda:1"]
    assert result is run_cell("t").value
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


def test_on_shows_one_table(gpu_work: Any, ip: Any, run_cell: Any) -> None:
    ip.user_ns["torch"] = gpu_work.torch
    ran = run_cell("%%cudatime --on cpu,cuda -n 2 -r 5 x = torch.ones(8, 8)\nx @ x")
    assert "cuda:0" in ran.text
    assert "baseline" in ran.text


def test_on_shows_what_is_complete_when_it_raises(gpu_work: Any, ip: Any, run_cell: Any) -> None:
    ip.user_ns["torch"] = gpu_work.torch
    ran = run_cell(
        "%%cudatime --on cpu,cuda:0 -n 1 -r 2\nassert str(torch.ones(1).device) == 'cpu'",
        raising=False,
    )
    assert isinstance(ran.error, AssertionError)
    assert "baseline" in ran.text
    assert "stopped early: not one repeat is complete on cuda:0" in ran.text
    assert str(gpu_work.torch.ones(1).device) == "cpu"


def test_on_that_is_stopped_says_where(gpu_work: Any, ip: Any, run_cell: Any) -> None:
    ip.user_ns["left"] = iter(range(3))
    on = "%%cudatime --on cpu,cuda:0 -n 1 -r 2 -w 0 -v t --name it"
    ran = run_cell(f"{on}\nnext(left)", raising=False)
    assert isinstance(ran.error, StopIteration)
    assert "stopped early on cuda:0, after 1 of 2 repeats" in ran.text
    compared = run_cell("t").value
    assert [(each.name, each.timing.partial) for each in compared] == [
        ("cpu", False),
        ("cuda:0", True),
    ]
    # on the first device
    ip.user_ns["left"] = iter(range(1))
    ran = run_cell(f"{on}\nnext(left)", raising=False)
    assert "cpu" in ran.text
    assert "stopped early on cpu, after 1 of 2 repeats" in ran.text
    # before there is anything
    ran = run_cell(f"{on}\n1 / 0", raising=False)
    assert isinstance(ran.error, ZeroDivisionError)
    assert "stopped before the first repeat was complete" in ran.stdout


def test_on_passes_the_codes_exception_when_ours_fails(
    gpu_work: Any, ip: Any, run_cell: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gpumagic.magics.cudatime import device_comparison

    monkeypatch.setattr(device_comparison, "compare", lambda timings: 1 / 0)
    ip.user_ns["left"] = iter(range(3))
    ran = run_cell("%%cudatime --on cpu,cuda:0 -n 1 -r 2 -w 0\nnext(left)", raising=False)
    assert isinstance(ran.error, StopIteration)
    assert "cannot show the times (ZeroDivisionError: division by zero)" in ran.stdout
