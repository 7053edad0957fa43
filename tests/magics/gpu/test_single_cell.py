"""``%%gpu SPEC``: one cell under a choice, and what of it stays."""

from __future__ import annotations

import re
import threading
from typing import Any

import pytest
from IPython.core.error import UsageError

from tests.magics.gpu.choices import COUNTING, TENSOR, choose
from tests.support.kernels import Kernel


def test_the_choice_is_put_back(fresh_kernel: Kernel) -> None:
    """After a value, an await, an exception, and a cell that does not parse."""
    k = fresh_kernel
    chosen = k.run("%%gpu 1\nimport asyncio, os\nos.environ['CUDA_VISIBLE_DEVICES']")
    assert chosen.value == "'1'"
    assert "applied: this process sees 1 GPU" in chosen.text
    cell = "%%gpu off -q -v quiet\nawait asyncio.sleep(0.01)\nos.environ['CUDA_VISIBLE_DEVICES']"
    assert (k.run(cell).value, k.value("quiet.status")) == ("'-1'", "applied")
    both = k.run("%%gpu 0 -o\n41 + 1").shown
    assert "<Selection: applied: this process sees 1 GPU " in both
    assert "42" in both
    for body, name, line in (("\n1 / 0", "ZeroDivisionError", 3), ("1 +", "SyntaxError", 2)):
        failed = k.run(f"%%gpu off\n{body}", raising=False)
        assert failed.error is not None
        assert failed.error["ename"] == name
        assert re.search(f"line {line}|----> {line}", re.sub(r"\x1b\[[\d;]*m", "", failed.shown))
    assert "applied" not in failed.shown
    assert "gpumagic/" not in failed.shown  # as for any cell: the line, and no traceback
    assert k.value("os.environ.get('CUDA_VISIBLE_DEVICES')") is None


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
    """The claim is on what the process has; the variables are for processes started from here."""
    k = fresh_kernel
    k.run("%gpu 2 -q")
    reply = k.run("%%gpu 1 --threads 1\nimport torch\ntorch.empty(1, device='cuda');")
    assert reply.value is None
    assert "its choice of GPUs has become permanent" in reply.text
    assert k.value("torch.cuda.device_count()") == 1
    assert k.value("__import__('os').environ.get('CUDA_VISIBLE_DEVICES')") == "2"
    table = k.run("%gpu").text
    assert re.findall(r"GPU .*: claimed.*", table) == ["GPU 1: claimed by this process."]
    assert "without effect here, where CUDA was initialised with other values" in table
    assert k.run("%gpu 1").text.startswith("applied"), "for processes started from here"
    assert k.run("%gpu 1").text.startswith("unchanged: this process sees 1 GPU")


def test_a_cell_in_which_cuda_fails_makes_that_permanent(fresh_kernel: Kernel) -> None:
    backward = "%%gpu off\nimport torch\ntorch.ones(2, requires_grad=True).sum().backward()"
    reply = fresh_kernel.run(backward)
    said = " ".join(reply.text.split())
    assert "start again in this process: it sees no GPU any more" in said
    assert "%gpu on --restart" in said
    for _ in range(2):
        table = fresh_kernel.run("%gpu").text
        assert "CUDA has failed in this process" in table
        assert table.rstrip().endswith("To change that: %gpu on --restart")
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


def test_a_cell_whose_choice_is_too_late_does_not_run(fresh_kernel: Kernel) -> None:
    """What was to run without a GPU would run on it; what it changes is as before."""
    k = fresh_kernel
    k.run(TENSOR + "; import os; ran = []")
    reply = k.run("%%gpu off\nran.append(1)", raising=False)
    assert reply.status == "error"
    says = "UsageError: the cell did not run: Too late for 'off': torch has initialised CUDA"
    assert reply.stderr.startswith(says)
    assert reply.shown.count("Too late") == reply.stderr.count("\n") == 1
    assert k.value("(ran, os.environ.get('CUDA_VISIBLE_DEVICES'))") == ([], None)
    assert k.value("torch.cuda.device_count()") == 4
    k.run("%%gpu 0-3\nran.append(1)")  # it has these
    assert k.value("ran") == [1]


def test_what_makes_nothing_permanent(fresh_kernel: Kernel) -> None:
    """A cell that leaves CUDA alone."""
    fresh_kernel.run("import torch\n" + COUNTING)
    assert "permanent" not in fresh_kernel.run("%%gpu off\ntorch.ones(2) + 1;").text
    assert "sees all 4 GPUs" in fresh_kernel.run("%gpu").text
    choose(fresh_kernel, "1", status="applied")
    fresh_kernel.run(TENSOR)


def test_a_choice_beside_the_running_cell_is_refused(monkeypatch: Any, ip: Any) -> None:
    """In a subshell: the cell's end would take it back without a word."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    began, end = threading.Event(), threading.Event()
    ip.user_ns.update(began=began, end=end)
    cell = threading.Thread(
        target=ip.run_cell_magic, args=("gpu", "reset -q", "began.set(); end.wait()")
    )
    cell.start()
    began.wait()
    try:
        for refused in (
            lambda: ip.run_line_magic("gpu", "off"),
            lambda: ip.run_cell_magic("gpu", "off", "1"),
        ):
            with pytest.raises(UsageError, match="a %%gpu cell is running"):
                refused()
    finally:
        end.set()
        cell.join()
    ip.run_line_magic("gpu", "reset -q")
