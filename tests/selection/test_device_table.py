"""The notebooks of processes, by the environment that Jupyter gives their kernels."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from gpumagic.results.devices import Claim, Device, Process
from gpumagic.selection import device_table


@pytest.fixture
def process() -> Iterator[Callable[[str | None], int]]:
    """``process(name)``: the pid of a process whose kernel was started for this notebook."""
    started: list[Any] = []

    def start(name: str | None) -> int:
        given = {} if name is None else {"JPY_SESSION_NAME": name}
        one = subprocess.Popen(
            [sys.executable, "-c", "print(flush=True); input()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **given},
        )
        started.append(one)
        assert one.stdout is not None
        one.stdout.readline()  # it runs: the system has its environment
        return one.pid

    yield start
    for one in started:
        one.communicate(b"\n")


def test_the_name_is_the_notebooks_and_nothing_else(
    process: Callable[[str | None], int],
) -> None:
    assert device_table.notebook(process("work/train.ipynb")) == "train.ipynb"
    assert device_table.notebook(process("\x1b[31m.ipynb")) == "\ufffd[31m.ipynb"
    for other in (None, "5c2b8e0e-7a0d-4c2c", "notes.txt"):
        assert device_table.notebook(process(other)) is None
    assert device_table.notebook(2**22 + 1) is None


def test_only_the_users_own_are_named(process: Callable[[str | None], int]) -> None:
    pid = process("a/train.ipynb")
    for mine, name in ((True, "train.ipynb"), (False, None)):
        given = Device(0, processes=(Process(pid, mine=mine),), claims=(Claim(pid, mine=mine),))
        device = device_table.with_notebooks(given)
        assert device.processes is not None
        assert (device.processes[0].notebook, device.claims[0].notebook) == (name, name)
    assert device_table.with_notebooks(Device(0)).processes is None
