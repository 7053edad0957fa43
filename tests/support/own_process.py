"""The marker ``own_process``: a test that leaves its process unusable runs in one of its own.

What CUDA objects do while their context is dead, at the latest when they are garbage collected,
may end the process, or leave torch's allocator as no other test expects it.
"""

from __future__ import annotations

import os
import sys
import tempfile

import pytest

_INSIDE = "GPUMAGIC_TEST_IN_ITS_OWN_PROCESS"


def inside() -> bool:
    """Whether this process runs one such test."""
    return _INSIDE in os.environ


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "own_process: runs in a process of its own, which it spoils")


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    if pyfuncitem.get_closest_marker("own_process") is None or inside():
        return None
    from tests.support import forks
    from tests.support.kernels import python_environment

    # pytest removes old folders of other runs, which other runs may be removing too.
    with tempfile.TemporaryDirectory() as folder:
        options = ["-q", "-p", "no:cacheprovider", f"--basetemp={folder}/tests"]
        if os.environ.get("PYTEST_DISABLE_PLUGIN_AUTOLOAD"):
            options += ["-p", "pytest_timeout"]  # which pyproject.toml has an option for
        done = forks.run(
            [sys.executable, "-m", "pytest", *options, pyfuncitem.nodeid],
            env=python_environment({**os.environ, _INSIDE: "1"}),
        )
    assert done.returncode == 0, f"{done.stdout[-4000:]}\n{done.stderr[-2000:]}"
    assert "1 passed" in done.stdout
    return True
