"""What Google Colab does differently: how its kernel is started, its shell, who restarts it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.kernels import PATIENCE, Kernel, running_kernel

LAUNCHER = "tests.support.colab_launcher"
CLASSES = (
    "[type(each).__name__ for ip in [get_ipython()] "
    "for each in (ip, ip.kernel, ip.history_manager, ip.inspector)]"
)
OWN_CLASSES = ["Shell", "Kernel", "History", "Inspect"]
#: Too late for a choice from here on.
USES_CUDA = "import torch; x = torch.arange(5).cuda()"
PROCESS = "(__import__('os').getpid(), __import__('sys').orig_argv)"


@pytest.fixture
def colab(tmp_path: Path) -> Iterator[Kernel]:
    """A kernel as Colab starts it."""
    with running_kernel(tmp_path, fresh=True, launcher=LAUNCHER) as kernel:
        yield kernel


def test_the_magics_in_its_shell(colab: Kernel) -> None:
    assert colab.value(CLASSES) == OWN_CLASSES
    for magic in ("gpu", "cudatime", "gpumem"):  # with nothing below it: the body is a blank there
        assert colab.run(f"%%{magic} --help").status == "ok"
    assert "cuda:0" in colab.run("%gpu").shown
    assert "applied" in colab.run("%%gpu 1\nimport torch").shown
    assert "GPU" in colab.run("%%cudatime\ntorch.ones(9, device='cuda')").shown
    assert "2.00 KiB" in colab.run("%%gpumem\ny = torch.ones(300, device='cuda')").shown
    assert colab.value("get_ipython().history_manager.cells[-2][:8]") == "%%gpumem"
    defined = colab.run("def step():\n    pass").execution_count
    colab.run("from gpumagic.cells.compile import cell_of")
    assert colab.value("cell_of(get_ipython(), step.__code__.co_filename)") == defined
    failed = colab.run("%%cudatime\n1 / 0", raising=False).error
    assert failed is not None
    assert failed["colab"] is True, "its own _showtraceback sent it"
    help_ = colab.client.inspect("%cudatime", 9, reply=True, timeout=PATIENCE)["content"]
    assert "--lines" in help_["data"]["text/plain"]


def test_a_restart_comes_back_through_its_launcher(colab: Kernel) -> None:
    before = colab.value(PROCESS)
    colab.run(USES_CUDA)
    asking, below = colab.submit("%gpu reset --restart"), colab.submit("x.tolist()")
    assert colab.wait(asking).shown.count("restarted: ") == 1
    assert colab.wait(below).value == "[0, 1, 2, 3, 4]"
    assert colab.value(PROCESS) == before
    assert colab.value(CLASSES) == OWN_CLASSES
    assert colab.value("__import__('sys').modules['__main__'].__dict__.get('x') is x") is True
