"""No process that gpumagic starts imports, or runs, a file of the working folder."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable

import pytest

from gpumagic.cuda import probe
from gpumagic.system import child_process
from tests.support.planted_modules import PlantedModules
from tests.virtual_gpu import Scenario

pytestmark = pytest.mark.skipif(os.name == "nt", reason="the planted files are for POSIX")


def test_a_use_is_recorded(planted: PlantedModules) -> None:
    subprocess.run([sys.executable, "-c", "import json"], capture_output=True, check=False)
    assert planted.used
    source = f"{child_process.REMOVE_WORKING_FOLDER}; import ctypes; ctypes.CDLL('libcuda.so.1')"
    alone = ["-P"] if sys.version_info >= (3, 11) else []  # 3.13 imports before it runs `-c`
    load = [sys.executable, "-S", "-E", *alone, "-c", source]
    done = subprocess.run(load, capture_output=True, text=True, check=False)
    assert "libcuda.so.1: " in done.stderr


def test_no_child_process_runs_a_file_of_the_working_folder(planted: PlantedModules) -> None:
    """Slow: how the child starts, and imports torch, is the question."""
    build, start = probe.in_child({}, timeout=600)
    assert (build.error, build.compiled, start.message) == (None, True, None)
    assert start.count
    assert planted.used == []


def test_the_command_runs_no_file_of_the_working_folder(
    planted: PlantedModules, child_environment: Callable[..., dict[str, str]]
) -> None:
    """As its installed script starts it. Slow: the doctor asks torch in a child."""
    script = planted.folder.parent / "gpumagic"
    script.write_text("import sys\nfrom gpumagic.cli import main\nsys.exit(main())\n")
    path = os.pathsep.join(filter(os.path.isabs, os.environ["PYTHONPATH"].split(os.pathsep)))
    done = subprocess.run(
        [sys.executable, str(script)],
        env=child_environment(Scenario(devices=2), {"PYTHONPATH": path}),
        capture_output=True,
        text=True,
        check=True,
        timeout=600,
    )
    assert planted.used == []
    assert "torch can use 2 GPUs here." in done.stdout
