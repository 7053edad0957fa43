"""``%gpu … --threads``: the CPU threads that torch computes with."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from gpumagic.selection import cpu_threads
from tests.support.kernels import Kernel
from tests.support.shells import Ran


@pytest.fixture
def torch_threads() -> Iterator[Callable[[], int]]:
    import torch

    before = torch.get_num_threads()
    yield torch.get_num_threads
    cpu_threads.undo()
    torch.set_num_threads(before)


def test_off_tells_the_threads(
    run_cell: Callable[..., Ran], torch_threads: Callable[[], int]
) -> None:
    before = torch_threads()
    told = run_cell("%gpu off --soft").text
    assert f"CPU: torch computes with {before} thread" in told
    assert f"{cpu_threads.cores().allowed} core" in told
    set_ = run_cell("%gpu off --soft --threads 3").text
    assert torch_threads() == 3
    assert "CPU: torch computes with 3 threads" in set_
    assert f"{before} thread" in run_cell("%gpu on").text
    assert torch_threads() == before
    assert "CPU" not in run_cell("%gpu on").text


def test_threads_go_with_a_restart(kernel: Callable[..., Kernel]) -> None:
    fresh_kernel = kernel()
    fresh_kernel.run("import torch\ntorch.cuda.init()")
    shown = fresh_kernel.run("%gpu off --restart --threads 3")
    assert "CPU: torch computes with 3 threads" in shown.text
    assert fresh_kernel.value(
        "(__import__('torch').get_num_threads(), __import__('torch').cuda.is_available())"
    ) == (
        3,
        False,
    )


def test_threads_for_one_cell(
    run_cell: Callable[..., Ran], torch_threads: Callable[[], int]
) -> None:
    before = torch_threads()
    ran = run_cell("%%gpu off --soft --threads 3\nimport torch\ntorch.get_num_threads()")
    assert ran.value == 3
    assert torch_threads() == before
    failed = run_cell("%%gpu off --soft --threads 3\n1 / 0", raising=False)
    assert isinstance(failed.error, ZeroDivisionError)
    assert torch_threads() == before
