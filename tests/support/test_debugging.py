"""A newcomer sets a breakpoint in a kernel that a test drives."""

from __future__ import annotations

import builtins
import sys
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from tests.support.kernels import Kernel


def test_a_breakpoint_in_a_kernel_asks_the_terminal(
    kernel: Callable[..., Kernel], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    typed = iter(["p answer + 1", "continue"])
    monkeypatch.setattr(builtins, "input", lambda prompt: next(typed))
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(isatty=lambda: True))  # as with pytest -s
    cell = "answer = 41\ndef work():\n    breakpoint()\n    return answer\nprint('got', work())"
    assert kernel(load=False).run(cell).stdout.endswith("got 41\n")
    seen = capsys.readouterr().out
    assert "work" in seen
    assert "42" in seen
