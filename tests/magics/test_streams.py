"""Cells and scripts whose ``sys.stdout`` is the user's own: values and exceptions are theirs."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from typing import Any

import pytest

from tests.magics import every_magic
from tests.support import forks
from tests.support.kernels import Kernel

#: From public notebooks: what is printed goes to a file, too, here of another encoding.
LOGGER = """
import sys
class Logger:
    def __init__(self):
        self.terminal = sys.stdout
        self.log = b""
    def write(self, message):
        self.terminal.write(message)
        self.log += message.encode("ascii")
    def flush(self):
        pass
sys.stdout = sys.stderr = Logger()
"""
FAILING = ("%%cudatime\n1 / 0", "%%gpumem\n1 / 0", "%%cudatime -n 1 -r 1\n1 / 0", "1 / 0")


def test_in_a_notebook(kernel: Callable[..., Kernel]) -> None:
    fresh = kernel()
    fresh.run(every_magic.SETUP + LOGGER)
    for cell in every_magic.CELLS[:-1]:
        reply = fresh.run(cell, raising=False)
        assert reply.status == "ok" or "too much" in cell, reply.shown
    for cell in FAILING:
        error = fresh.run(cell, raising=False).error
        assert error is not None
        assert error["ename"] == "ZeroDivisionError", cell
    timed = fresh.run("%%cudatime\n[1 + 1]")
    assert timed.value == "[2]"
    assert "wall" in timed.text


class OnlyWrite:
    def write(self, text: str) -> None:
        text.encode("ascii")


class Closed(io.StringIO):
    def __init__(self) -> None:
        super().__init__()
        self.close()


@pytest.mark.parametrize("make", [OnlyWrite, Closed, lambda: None], ids=["write", "closed", "none"])
def test_in_a_shell(ip: Any, make: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Streams with which IPython itself shows nothing."""
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", make())
        patch.setattr(sys, "stderr", make())
        ip.run_line_magic("gpu", "-p")
        ip.run_line_magic("gpumem", "")
        values = [
            ip.run_cell_magic("cudatime", "", "[1 + 1]"),
            ip.run_cell_magic("gpumem", "", "[1 + 1]"),
            ip.run_cell_magic("gpu", "on", "[1 + 1]"),
        ]
        for name, line in (
            ("cudatime", ""),
            ("cudatime", "-n 1 -r 1"),
            ("gpumem", ""),
            ("gpu", "on"),
        ):
            with pytest.raises(ZeroDivisionError):
                ip.run_cell_magic(name, line, "1 / 0")
    assert values == [[2]] * 3


_SCRIPT = """
import gpumagic, torch
@gpumagic.cudatime
def step():
    return torch.ones(4, device="cuda").sum()
@gpumagic.gpumem
def used():
    return step()
used()
print(gpumagic.devices())
print(repr(gpumagic.devices()))
try:
    gpumagic.cudatime(lambda: 1 / 0)()
except ZeroDivisionError:
    print("passed")
"""


def test_in_a_script_whose_output_has_another_encoding(
    child_environment: Callable[..., dict[str, str]],
) -> None:
    """As ``python train.py > log.txt`` on Windows."""
    environment = child_environment(env={"PYTHONIOENCODING": "ascii"})
    done = forks.run([sys.executable, "-c", _SCRIPT], env=environment, fresh=True)
    assert done.returncode == 0, done.stderr
    assert "step:" in done.stdout
    assert done.stdout.endswith("passed\n")
