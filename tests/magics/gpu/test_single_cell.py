"""``%%gpu SPEC``: one cell under a choice, and what of it stays."""

from __future__ import annotations

import re

import pytest

from tests.magics.gpu.choices import COUNTING, TENSOR, choose
from tests.support.kernels import Kernel


def uncolored(text: str) -> str:
    return re.sub(r"\x1b\[[\d;]*m", "", text)


# --- one cell ------------------------------------------------------------------------------------


def test_one_cell_under_a_choice(fresh_kernel: Kernel) -> None:
    reply = fresh_kernel.run("%%gpu 1\nimport os\nos.environ['CUDA_VISIBLE_DEVICES'][:4]")
    assert reply.value == "'GPU-'"
    assert "applied: this kernel sees 1 GPU" in reply.text
    assert fresh_kernel.value("'CUDA_VISIBLE_DEVICES' in os.environ") is False


def test_the_choice_is_put_back_when_the_cell_raises(fresh_kernel: Kernel) -> None:
    reply = fresh_kernel.run("%%gpu off\nimport os\n\n1 / 0", raising=False)
    assert reply.error is not None
    assert reply.error["ename"] == "ZeroDivisionError"
    assert re.search("line 4|----> 4", uncolored(reply.shown))
    assert fresh_kernel.value("os.environ.get('CUDA_VISIBLE_DEVICES')") is None


def test_one_cell_that_awaits(fresh_kernel: Kernel) -> None:
    body = "import asyncio, os\nawait asyncio.sleep(0.01)\nos.environ['CUDA_VISIBLE_DEVICES']"
    cell = "%%gpu off\n" + body
    assert fresh_kernel.run(cell).value == "'-1'"
    assert fresh_kernel.value("os.environ.get('CUDA_VISIBLE_DEVICES')") is None


def test_threads_for_one_cell(fresh_kernel: Kernel) -> None:
    before = fresh_kernel.value("__import__('torch').get_num_threads()")
    cell = "%%gpu off --soft --threads 3\nimport torch\ntorch.get_num_threads() // (1 - fails)"
    fresh_kernel.run("fails = 0")
    assert fresh_kernel.run(cell).value == "3"
    assert fresh_kernel.value("torch.get_num_threads()") == before
    fresh_kernel.run("fails = 1")
    assert fresh_kernel.run(cell, raising=False).error["ename"] == "ZeroDivisionError"
    assert fresh_kernel.value("torch.get_num_threads()") == before


def test_a_cell_that_initialises_cuda_makes_its_choice_permanent(fresh_kernel: Kernel) -> None:
    reply = fresh_kernel.run("%%gpu 1\nimport torch\ntorch.empty(1, device='cuda');")
    assert reply.value is None
    assert "its choice of GPUs has become permanent" in reply.text
    assert fresh_kernel.value("torch.cuda.device_count()") == 1
    assert fresh_kernel.value("__import__('os').environ.get('CUDA_VISIBLE_DEVICES')") is None


def test_a_cell_in_which_cuda_fails_makes_that_permanent(fresh_kernel: Kernel) -> None:
    backward = "%%gpu off\nimport torch\ntorch.ones(2, requires_grad=True).sum().backward()"
    reply = fresh_kernel.run(backward)
    said = " ".join(reply.text.split())
    assert "start again in this process: this kernel sees no GPU any more" in said
    assert "%gpu on --restart" in said
    assert "CUDA has failed in this process" in fresh_kernel.run("%gpu").text
    with pytest.raises(AssertionError, match="RuntimeError"):
        fresh_kernel.run(TENSOR)
    assert "sees no GPU any more" not in fresh_kernel.run(backward).text  # said once


def test_a_copy_that_cannot_be_made_is_no_affair_of_the_cells(fresh_kernel: Kernel) -> None:
    fresh_kernel.run(
        "import os, torch\n"
        "def no_fork(): raise BlockingIOError(11, 'Resource temporarily unavailable')\n"
        "os.fork = no_fork"
    )
    assert fresh_kernel.run("%%gpu off\n6 * 7").value == "42"
    result = choose(fresh_kernel, "1", status="too-late")
    assert "'1' is not verified" in result["stderr"]


def test_a_gate_for_one_cell_hides_nothing(fresh_kernel: Kernel) -> None:
    fresh_kernel.run("import torch\n" + COUNTING)
    fresh_kernel.run("%%gpu off --soft\nx = 1")
    assert fresh_kernel.value("len(_asked)") == 0
    choose(fresh_kernel, "1", status="applied")


def test_a_cell_that_leaves_cuda_alone_makes_nothing_permanent(fresh_kernel: Kernel) -> None:
    assert "permanent" not in fresh_kernel.run("%%gpu off\nimport torch\ntorch.ones(2) + 1;").text
    assert "sees all 4 GPUs" in fresh_kernel.run("%gpu").text
    fresh_kernel.run(TENSOR)


def test_a_cell_that_does_not_parse_changes_nothing(fresh_kernel: Kernel) -> None:
    reply = fresh_kernel.run("%%gpu off\n1 +", raising=False)
    assert reply.error is not None
    assert reply.error["ename"] == "SyntaxError"
    assert "applied" not in reply.shown
    assert "line 2" in uncolored(reply.shown)
    assert "gpumagic/" not in reply.shown  # as for any cell: the line, and no traceback


def test_the_result_of_a_cells_choice(fresh_kernel: Kernel) -> None:
    fresh_kernel.run("%%gpu off -v chosen -q\n41 + 1")
    assert fresh_kernel.value("chosen.status") == "applied"
    reply = fresh_kernel.run("%%gpu 0 -o\n41 + 1")
    assert "<Selection: applied: this kernel sees 1 GPU " in reply.shown
    assert "42" in reply.shown
