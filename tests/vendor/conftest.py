"""Processes that find NVIDIA's own libraries, and no virtual ones."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support import forks, kernels
from tests.vendor import libraries, questions

HERE = Path(__file__).parent
_DEVICES = Path("/dev")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """These need a run of their own, since all others are on the virtual GPU."""
    vendor = config.getoption("vendor")
    for item in items:
        if (HERE in item.path.parents) != vendor:
            reason = "not on NVIDIA's own libraries" if vendor else "make test-vendor runs it"
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def libraries_folder() -> Path:
    """Where the libraries are; skips where a real driver would answer beside them."""
    if Path("/proc/driver/nvidia/version").exists():
        pytest.skip("this machine has a driver of its own loaded")
    folder = libraries.unpacked()
    if folder is None:
        pytest.skip("NVIDIA's libraries are not unpacked: make test-vendor")
    return folder


@pytest.fixture(autouse=True)
def _no_device_files() -> Iterator[None]:
    """Take away the device files that the libraries make as root, if they were not there before."""
    before = set(_DEVICES.glob("nvidia*"))
    yield
    for made in set(_DEVICES.glob("nvidia*")) - before:
        made.unlink(missing_ok=True)


@pytest.fixture
def child_environment(libraries_folder: Path) -> Callable[..., dict[str, str]]:
    """``child_environment(scenario=None, env=None)``: as for all tests; there is one machine."""

    def make(scenario: Any = None, env: Mapping[str, str | None] | None = None) -> dict[str, str]:
        assert scenario is None, "nothing is virtual here"
        path = filter(None, [str(libraries_folder), os.environ.get("LD_LIBRARY_PATH")])
        changes = {"LD_LIBRARY_PATH": os.pathsep.join(path), "CUDA_VISIBLE_DEVICES": None}
        return kernels.child_environment(env={**changes, **(env or {})})

    return make


@pytest.fixture
def ask(child_environment: Callable[..., dict[str, str]]) -> Callable[..., Any]:
    """``ask(subject, *arguments, env=None)``: the answers to `questions`, from a fresh process."""

    def run(*arguments: str, env: Mapping[str, str | None] | None = None) -> Any:
        command = [sys.executable, questions.__file__, *arguments]
        return json.loads(forks.output(command, env=child_environment(env=env)))

    return run
