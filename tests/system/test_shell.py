"""`gpumagic.system.shell`: IPython has what is relied on, in each version of the tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from ipykernel.zmqshell import ZMQInteractiveShell
from IPython.terminal.interactiveshell import TerminalInteractiveShell

from gpumagic.system.shell import Shell
from tests.support.kernels import Kernel

#: What only one of the two kinds of shell has.
ONLY = {"kernel": ZMQInteractiveShell, "mainloop": TerminalInteractiveShell}


@pytest.mark.parametrize("name", ONLY)
def test_what_one_kind_has(name: str) -> None:
    assert hasattr(ONLY[name], name)


def test_a_shell_has_each_member(ip: Any) -> None:
    assert [
        name for name in Shell.__annotations__ if name not in ONLY and not hasattr(ip, name)
    ] == []


def test_a_notebook_process_has_each_member(kernel: Callable[..., Kernel]) -> None:
    names = [*Shell.__annotations__.keys() - {"mainloop"}]
    assert kernel().value(f"[n for n in {names} if not hasattr(get_ipython(), n)]") == []
