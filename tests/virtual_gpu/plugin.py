"""A pytest plugin: the fixture `virtual_gpu`; a run fails whose calls met only a stub."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from . import World, adopt, separate, unimplemented_calls, virtual_clock
from .world import STATE

_CALLS = "calls that the virtual GPU does not implement"
_from_workers: Counter[str] = Counter()


def pytest_configure(config: pytest.Config) -> None:
    """Takes over the scenario that this process was started in.

    A worker of pytest-xdist gets a copy of it: what one test changes, no other is to see.
    """
    if hasattr(config, "workerinput") and os.environ.get(STATE):
        separate()
    else:
        adopt()


@pytest.fixture
def virtual_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """The world of this process, to change; afterwards it is as it was."""
    try:
        world = World.current()
    except LookupError:
        pytest.skip("not on the virtual GPU")
    # torch 2.6 sets it when it initializes CUDA, and leaves it set.
    monkeypatch.setenv("CUDA_MODULE_LOADING", "LAZY")
    world.reset()
    yield world
    world.reset()


@pytest.fixture
def clock(virtual_gpu: World) -> Iterator[None]:
    """Times are by `virtual_clock` in this test, and GPUs at their full clock: on any machine."""
    virtual_gpu.hold_clocks()
    with virtual_clock():
        yield


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fails a run that would have passed."""
    calls = unimplemented_calls() + _from_workers
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput[_CALLS] = dict(calls)
    elif calls and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Adds up what the workers of pytest-xdist have met."""
    _from_workers.update(getattr(node, "workeroutput", {}).get(_CALLS, {}))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Name the calls that are not implemented."""
    calls = unimplemented_calls() + _from_workers
    if calls:
        terminalreporter.section(_CALLS, red=True)
        for name, count in sorted(calls.items()):
            terminalreporter.write_line(f"{name}: {count}")
        terminalreporter.write_line("VIRTUAL_GPU_TRACE=1 prints each")
