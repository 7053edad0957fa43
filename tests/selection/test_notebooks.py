"""The notebooks of processes, by the environment that Jupyter gives their kernels."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from gpumagic.results.devices import Claim, Device, Process
from gpumagic.selection import notebooks


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
    assert notebooks.name_of(process("work/train.ipynb")) == "work/train.ipynb"
    assert notebooks.name_of(process("\x1b[31m.ipynb")) == "\ufffd[31m.ipynb"
    for other in (None, "5c2b8e0e-7a0d-4c2c", "notes.txt"):
        assert notebooks.name_of(process(other)) is None
    assert notebooks.name_of(2**22 + 1) is None


def test_only_the_users_own_are_named(process: Callable[[str | None], int]) -> None:
    pid = process("a/train.ipynb")
    (device,) = notebooks.with_notebooks(
        [Device(0, processes=(Process(pid, mine=True),), claims=(Claim(pid, mine=True),))]
    )
    assert device.processes is not None
    assert (device.processes[0].notebook, device.claims[0].notebook) == ("train.ipynb",) * 2
    (device,) = notebooks.with_notebooks(
        [Device(0, processes=(Process(pid, mine=False),), claims=(Claim(pid),))]
    )
    assert device.processes is not None
    assert (device.processes[0].notebook, device.claims[0].notebook) == (None, None)
    (device,) = notebooks.with_notebooks([Device(0)])
    assert device.processes is None
