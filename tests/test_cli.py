"""The command ``gpumagic``, started both ways."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest

from tests.virtual_gpu import Scenario

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def run(child_environment: Callable[..., dict[str, str]]) -> Run:
    """``run(*words, env=None)``: a command, started as a user does; slow for that."""

    def run(*words: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            words,
            env=child_environment(Scenario(devices=2), env),
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )

    return run


MODULE = (sys.executable, "-m", "gpumagic")


def test_the_command_line(run: Run) -> None:
    """The doctor asks torch in a child."""
    both = run(*MODULE)
    assert both.returncode == 0, both.stderr
    assert "cuda:1" in both.stdout
    assert "torch can use 2 GPUs here." in both.stdout
    assert run(*MODULE, "doctor", "--help").stdout.startswith("usage: gpumagic doctor")


def test_the_installed_script(run: Run) -> None:
    try:
        scripts = distribution("gpumagic").entry_points.select(group="console_scripts")
    except PackageNotFoundError:
        pytest.skip("gpumagic is not installed here, only found on the path")
    assert [script.name for script in scripts] == ["gpumagic"]
    # Not resolved: an environment's interpreter is a link to one with other scripts beside it.
    script = shutil.which("gpumagic", path=str(Path(sys.executable).parent))
    assert script is not None, "installed, but no script is beside the interpreter"
    assert len(json.loads(run(script, "table", "--json").stdout)["devices"]) == 2


def test_an_encoding_without_our_characters(run: Run) -> None:
    done = run(*MODULE, "table", env={"PYTHONIOENCODING": "ascii"})
    assert done.returncode == 0, done.stderr
    assert "40 C" in done.stdout
    assert "cuda:1" in done.stdout


def test_the_doctors_exit_status(run: Run) -> None:
    """For scripts: 1 where something is wrong."""
    assert run(*MODULE, "doctor").returncode == 0
    wrong = run(*MODULE, "doctor", env={"CUDA_VISIBLE_DEVICES": "9"})
    assert wrong.returncode == 1, wrong.stdout
    assert "✗" in wrong.stdout
    assert run(*MODULE, "table", env={"CUDA_VISIBLE_DEVICES": "9"}).returncode == 0
