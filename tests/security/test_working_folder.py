"""No process that gpumagic starts imports, or runs, a file of the working folder."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from gpumagic.cuda import probe
from gpumagic.restart.variables import keeping
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


def test_kept_variables_tried_in_a_child(
    planted: PlantedModules, ip: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even where the notebook's own import path begins with the working folder.

    From there comes what was imported from there, and nothing else. Slow, as what is tried in the
    child imports torch.
    """
    import torch

    (planted.folder / "of_the_notebook.py").write_text("class Mine: pass\n")
    paths = ["", ".", *filter(os.path.isabs, sys.path)]
    with monkeypatch.context() as patch:
        patch.syspath_prepend(str(planted.folder))
        mine = importlib.import_module("of_the_notebook")
    ip.user_ns.update(seven=7, tensor=torch.zeros(3), mine=mine.Mine())
    names, extension = ("seven", "tensor", "mine"), "gpumagic.magics.gpu.restart_report"
    with monkeypatch.context() as patch:
        patch.setattr(sys, "path", paths)
        file, kept = keeping.write(ip, dict.fromkeys(names, True), extension, dict(os.environ))
    file.close()
    del sys.modules["of_the_notebook"]
    assert kept.failed == {}
    assert planted.used == []


@pytest.fixture
def gpumagic(
    planted: PlantedModules, child_environment: Callable[..., dict[str, str]]
) -> Callable[..., str]:
    """``gpumagic(*words)``: what the command line prints, which uses no planted file."""

    def run(*words: str) -> str:
        path = os.pathsep.join(filter(os.path.isabs, os.environ["PYTHONPATH"].split(os.pathsep)))
        done = subprocess.run(
            [sys.executable, *words],
            env=child_environment(Scenario(devices=2), {"PYTHONPATH": path}),
            capture_output=True,
            text=True,
            check=True,
            timeout=600,
        )
        assert planted.used == []
        return done.stdout

    return run


def test_the_command_runs_no_file_of_the_working_folder(
    planted: PlantedModules, gpumagic: Callable[..., str]
) -> None:
    """As its installed script starts it. Slow: the doctor asks torch in a child."""
    script = planted.folder.parent / "gpumagic"
    script.write_text("import sys\nfrom gpumagic.cli import main\nsys.exit(main())\n")
    assert "torch can use 2 GPUs here." in gpumagic(str(script))


def test_the_command_line_by_its_module(
    planted: PlantedModules, gpumagic: Callable[..., str]
) -> None:
    """Python itself imports from the folder then; what gpumagic imports comes from elsewhere."""
    for each in planted.folder.glob("*.py"):
        if each.stem in sys.stdlib_module_names or each.stem == "gpumagic":
            each.unlink()  # a stranger's gpumagic would be all that runs
    for module in ("sitecustomize", "usercustomize"):
        (planted.folder / f"{module}.py").unlink()
    assert "cuda:1" in gpumagic("-m", "gpumagic", "table")
