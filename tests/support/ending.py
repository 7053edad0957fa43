"""A pytest plugin: a run fails that has left a process behind, and leaves none all the same."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.support import device, own_process, reaper

_watch: list[subprocess.Popen[bytes]] = []
_left: dict[int, str] = {}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--patience",
        type=float,
        default=15.0,
        metavar="SECONDS",
        help="how long processes may take to end after the last test (default: 15)",
    )


def _worker(config: pytest.Config) -> bool:
    """Whether another pytest has started this one, for its own run."""
    return hasattr(config, "workerinput") or own_process.inside()


def pytest_sessionstart(session: pytest.Session) -> None:
    # A worker carries the mark of the run that it belongs to.
    if not _worker(session.config):
        _watch.append(reaper.watch())
        if device.ENVIRONMENT:
            device.ENVIRONMENT.update(os.environ)
    # Before xdist, which is told of the start later, starts workers.
    if session.config.getoption("numprocesses", None) and not device.real(session.config):
        from tests.support import forks

        forks.share()


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> Iterator[None]:
    """Looks once everything has been torn down, also where that has failed."""
    try:
        yield
    finally:
        _look(session)


def _look(session: pytest.Session) -> None:
    forks = sys.modules.get("tests.support.forks")
    if forks is not None:
        forks.close()
    if _worker(session.config) or not _watch:
        return
    _left.update(reaper.left(session.config.getoption("patience")))
    if _left and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if _left:
        terminalreporter.section("processes left behind, ended now", red=True)
        for pid, command in sorted(_left.items()):
            terminalreporter.write_line(f"{pid}: {command}")


def pytest_unconfigure() -> None:
    while _watch:
        watch = _watch.pop()
        assert watch.stdin is not None
        watch.stdin.close()
        watch.wait()
    reaper.forget()
