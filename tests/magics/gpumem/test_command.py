"""``%gpumem`` and ``%%gpumem`` in a real shell, on devices with real contexts."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from gpumagic.results.memory.memory_delta import MemoryDelta
from gpumagic.results.memory.memory_report import MemoryReport
from tests.support.allocator import MIB, bytes_on, functions
from tests.support.kernels import Kernel


@pytest.fixture(autouse=True)
def _torch_in_the_namespace(torch: ModuleType, ip: Any) -> None:
    ip.user_ns["torch"] = torch


def test_a_cell(run_cell: Any) -> None:
    ran = run_cell(
        f"%%gpumem -v change\ngone = {bytes_on(0, 64 * MIB)}\ndel gone\nkept = {bytes_on(0, MIB)}"
    )
    change = run_cell("change").value
    assert isinstance(change, MemoryDelta)
    assert change.devices[0].allocated == MIB
    assert change.devices[0].peak == 64 * MIB
    assert change.devices[0].reserved == 64 * MIB + 2 * MIB
    assert change.devices[1].allocated == change.devices[1].peak == 0
    assert not change.partial
    assert "cuda:0" in ran.text
    assert "+64.0 MiB" in ran.text
    assert "cuda:1" not in ran.text
    assert "<table" in ran.html


def test_output_variable_and_quiet(run_cell: Any, ip: Any) -> None:
    ran = run_cell(f"%%gpumem -o -q -v stored\nx = {bytes_on(0, 512)}")
    assert ran.value.devices[0].allocated == 512
    assert run_cell("stored").value is ran.value
    assert run_cell("%gpumem -o 1;").value is None
    assert isinstance(run_cell("%gpumem -o -q").value, MemoryReport)
    assert run_cell("%gpumem ;").displays == []
    ip.magics_manager.registry["GpuMagic"].quiet = True
    assert run_cell("%gpumem").displays == []


def test_a_cell_that_raises(run_cell: Any) -> None:
    ran = run_cell(
        f"%%gpumem -v change\nkept = {bytes_on(0, 2 * MIB)}\nraise KeyError('mine')", raising=False
    )
    assert isinstance(ran.error, KeyError)
    assert ran.error.args == ("mine",)
    assert "+2.00 MiB" in ran.text
    change = run_cell("change").value
    assert change.partial
    assert change.devices[0].allocated == 2 * MIB


def test_a_cell_that_runs_out_of_memory(run_cell: Any, torch: ModuleType) -> None:
    """Also where it resets torch's count of earlier ones."""
    for _ in range(2):
        run_cell(bytes_on(0, 2**50), raising=False)
    ran = run_cell(
        "%%gpumem -v change\ntorch.cuda.reset_accumulated_memory_stats()\n"
        f"gone = {bytes_on(0, MIB)}\ndel gone\n{bytes_on(0, 2**50)}",
        raising=False,
    )
    assert type(ran.error) is torch.OutOfMemoryError
    change = run_cell("change").value.devices[0]
    assert (change.allocated, change.peak, change.ooms) == (0, MIB, 1)
    assert "cuda:0: out of memory, 1 allocation failed" in ran.text


def test_a_cell_that_awaits(run_cell: Any) -> None:
    ran = run_cell(
        "%%gpumem -v change\nimport asyncio\n"
        f"gone = {bytes_on(0, 5 * MIB)}\nawait asyncio.sleep(0)\ndel gone\n"
        f"kept = {bytes_on(0, MIB)}\nawait asyncio.sleep(0, 'value')"
    )
    assert ran.value == "value"
    change = run_cell("change").value.devices[0]
    assert (change.allocated, change.peak) == (MIB, 5 * MIB)


@pytest.mark.parametrize("measure", ["%gpumem -q 1", "with __import__('gpumagic').gpumem(): 1"])
def test_unloading_gives_torch_its_functions_back(
    run_cell: Any, ip: Any, torch: ModuleType, measure: str
) -> None:
    own = functions(torch)
    run_cell(f"x = {bytes_on(1, 100 * MIB)}\ndel x")
    run_cell(measure)
    assert functions(torch) != own
    # The user's peak, which torch's own counter has lost, is told as long as there is one.
    for change in (ip.extension_manager.reload_extension, ip.extension_manager.unload_extension):
        change("gpumagic")
        assert torch.cuda.max_memory_allocated(1) == 100 * MIB
    torch.cuda.reset_peak_memory_stats(1)
    assert all(now is own[name] for name, now in functions(torch).items())
    ip.extension_manager.load_extension("gpumagic")


def test_a_cell_that_unloads_gpumagic_is_measured_to_its_end(
    run_cell: Any, ip: Any, torch: ModuleType
) -> None:
    own = functions(torch)
    run_cell(f"%%gpumem -q -v delta\n%unload_ext gpumagic\na = {bytes_on(0, MIB)}")
    assert ip.user_ns["delta"].devices[0].allocated == MIB
    assert all(now is own[name] for name, now in functions(torch).items())
    ip.extension_manager.load_extension("gpumagic")


def test_the_report(run_cell: Any, torch: ModuleType) -> None:
    keep = torch.empty(3 * MIB, dtype=torch.uint8, device="cuda:0")
    torch.empty(30 * MIB, dtype=torch.uint8, device="cuda:0")
    first = run_cell("%gpumem -o")
    report = first.value
    row = report.devices[0]
    assert (row.allocated, row.reserved, row.peak) == (3 * MIB, 50 * MIB, 33 * MIB)
    assert [each.context for each in report.devices.values()][:3] == [True, True, False]
    assert "cuda:3" in first.text
    del keep
    second = run_cell("%gpumem -o")
    assert second.value.devices[0].allocated_change == -3 * MIB
    assert "Since the last report: cuda:0 allocated −3.00 MiB" in second.text


def test_a_failed_statement_that_changed_nothing_is_not_reported(run_cell: Any) -> None:
    run_cell("import torch")
    ran = run_cell("%gpumem nosuch", raising=False)
    assert "no change" not in ran.text
    assert "no change" in run_cell("%gpumem None").text


def test_a_limit_that_was_lifted_before_cuda_starts_leaves_nothing(
    kernel: Callable[..., Kernel],
) -> None:
    fresh = kernel()
    for line in ("limit", "limit off"):
        assert fresh.run(f"%gpumem {line}").text.startswith("No limit")
    assert fresh.value("'torch' in __import__('sys').modules") is False
    fresh.run("%gpumem limit 1GiB\n%gpumem limit off")
    reply = fresh.run("import torch; x = torch.zeros(2**30, dtype=torch.uint8, device='cuda')")
    assert reply.shown == ""
