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


@pytest.fixture(params=["python -m gpumagic", "gpumagic"])
def command(request: pytest.FixtureRequest) -> list[str]:
    """The two ways to start it: the module, and the installed script."""
    if request.param != "gpumagic":
        return [sys.executable, "-m", "gpumagic"]
    try:
        scripts = distribution("gpumagic").entry_points.select(group="console_scripts")
    except PackageNotFoundError:
        pytest.skip("gpumagic is not installed here, only found on the path")
    assert [script.name for script in scripts] == ["gpumagic"]
    # Not resolved: an environment's interpreter is a link to one with other scripts beside it.
    script = shutil.which("gpumagic", path=str(Path(sys.executable).parent))
    assert script is not None, "installed, but no script is beside the interpreter"
    return [script]


def test_the_command_line(
    command: list[str], child_environment: Callable[..., dict[str, str]]
) -> None:
    """Slow: each command is started as a user does, and the doctor asks torch in a child."""

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*command, *words],
            env=child_environment(Scenario(devices=2)),
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )

    both = run()
    assert both.returncode == 0, both.stderr
    assert "cuda:1" in both.stdout
    assert "torch can use 2 GPUs here." in both.stdout
    assert len(json.loads(run("table", "--json").stdout)["devices"]) == 2
    assert run("doctor", "--help").stdout.startswith("usage: gpumagic doctor")
    refused = run("kernel", "install", "--user", "--gpu", "7")
    assert refused.returncode == 1
    assert refused.stderr == ("gpumagic: there is no GPU 7; this machine has GPUs 0–1\n")


def test_an_encoding_without_our_characters(
    child_environment: Callable[..., dict[str, str]],
) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "gpumagic", "table"],
        env={**child_environment(Scenario(devices=2)), "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "40 ?C" in done.stdout
    assert "cuda:1" in done.stdout
