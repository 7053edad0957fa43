"""The doctor in fresh processes, on virtual machines."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support import forks
from tests.virtual_gpu import Scenario

Diagnosed = Callable[..., "dict[str, Any]"]


REPORT = """
import json, sys
from gpumagic import diagnose; from gpumagic.cuda import driver
loaded, before = "torch" in sys.modules, driver.state().initialized
result = diagnose().to_dict()
result["findings"] = {found.pop("subject"): found for found in result["findings"]}
# The doctor changes nothing here.
assert ("torch" in sys.modules) is loaded
assert driver.state().initialized is before
print("\\n" + json.dumps(result))
"""


@pytest.fixture
def diagnosed(child_environment: Callable[..., dict[str, str]], tmp_path: Path) -> Diagnosed:
    """``diagnosed(code, scenario, env)``: the report of a fresh process after ``code``."""

    def run(
        code: str = "",
        scenario: Scenario | None = None,
        env: Mapping[str, str | None] | None = None,
    ) -> dict[str, Any]:
        done = forks.run(
            [sys.executable, "-c", f"{code}\n{REPORT}"],
            env=child_environment(scenario, env),
            cwd=tmp_path,
        )
        assert done.returncode == 0, done.stderr
        report: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return report

    return run


def test_without_torch_loaded_a_child_imports_it(diagnosed: Diagnosed) -> None:
    """Slow for that child."""
    report = diagnosed(scenario=Scenario(devices=2))
    findings = report["findings"]
    assert report["verdict"] == "torch can use 2 GPUs here."
    assert "(in a child process)" in findings["torch"]["evidence"]
    assert "finds 2 devices (in a child process)" in findings["start of CUDA"]["evidence"]
    assert findings["driver"]["evidence"] == "580.95.05, for CUDA up to 13.0"
    assert {"bad", "warn"}.isdisjoint(found["status"] for found in findings.values())


#: torch as in a build for the CPU: without the function by which torch itself detects CUDA.
CPU_ONLY = """
import importlib.abc, sys
class Strip(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name == "torch.cuda":
            del sys.modules["torch._C"]._cuda_getDeviceCount
            sys.modules["torch.version"].cuda = None
        return None
sys.meta_path.insert(0, Strip())
"""


def test_torch_without_cuda(diagnosed: Diagnosed, tmp_path: Path) -> None:
    """Slow: a child imports torch, as ``sitecustomize`` changes it."""
    (tmp_path / "sitecustomize.py").write_text(CPU_ONLY)
    root = str(Path(__file__).parents[2])
    report = diagnosed(env={"PYTHONPATH": f"{tmp_path}:{root}"})
    assert "is built without CUDA" in report["verdict"]
    assert (report["usable"], report["findings"]["torch"]["status"]) == (0, "bad")
    assert "restart the notebook process" in report["findings"]["torch"]["remedy"]
    assert "start of CUDA" not in report["findings"]


def test_torch_missing_and_torch_broken(diagnosed: Diagnosed, tmp_path: Path) -> None:
    root = str(Path(__file__).parents[2])
    (tmp_path / "torch.py").write_text("raise OSError('libc10.so: cannot open shared object')")
    report = diagnosed(env={"PYTHONPATH": f"{tmp_path}:{root}"})
    assert report["usable"] is None
    assert report["verdict"] == "torch cannot use a GPU here, because torch cannot be imported."
    assert "OSError: libc10.so" in report["findings"]["torch"]["evidence"]
    (tmp_path / "torch.py").write_text(
        "raise ModuleNotFoundError('No module named torch', name='torch')"
    )
    report = diagnosed(env={"PYTHONPATH": f"{tmp_path}:{root}"})
    assert report["verdict"] == "torch cannot use a GPU here, because torch is not installed."


def test_nvml_missing_is_no_reason_for_torch(diagnosed: Diagnosed) -> None:
    report = diagnosed("import torch", Scenario(devices=2, nvml=False))
    assert report["verdict"] == "torch can use 2 GPUs here."
    assert report["findings"]["NVML"]["status"] == "warn"


def test_a_forked_child(diagnosed: Diagnosed) -> None:
    report = diagnosed(
        "import os, torch, warnings; torch.cuda.init()\n"
        "warnings.simplefilter('ignore')\n"
        "pid = os.fork()\n"
        "if pid:\n    os._exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))",
    )
    assert "was forked from one in which CUDA was initialised" in report["verdict"]
    assert "spawn" in report["findings"]["this process"]["remedy"]
