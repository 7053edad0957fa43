"""On Windows, without a GPU: functions of POSIX are missing, and what needs them says so.

No machine with Windows is there. So a kernel here hides from gpumagic what Windows has not.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.kernels import Kernel, child_environment, running_kernel
from tests.virtual_gpu import Scenario

EVERY_MODULE = """
import gpumagic, importlib, pkgutil
names = [each.name for each in pkgutil.walk_packages(gpumagic.__path__, "gpumagic.")]
for name in names:
    if not name.endswith("__main__"):
        importlib.import_module(name)
"""


@pytest.fixture(scope="module")
def windows(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kernel]:
    machine = child_environment(Scenario(devices=2, driver=False, nvml=False))
    folder = tmp_path_factory.mktemp("windows")
    with running_kernel(folder, machine, fresh=True, load=False) as kernel:
        kernel.run("from tests.support import windows; windows.hide()")
        kernel.run("%load_ext gpumagic")
        yield kernel


def test_the_magics(windows: Kernel) -> None:
    assert "This machine has no GPU" in windows.run("%gpu").shown
    assert "no GPU" in windows.run("%gpu auto").shown
    windows.run("import gpumagic, torch\nx = torch.ones(300, device=gpumagic.device())")
    assert "wall" in windows.run("%%cudatime\ny = x + x").shown
    assert "wall" in windows.run("%%cudatime -n 2 -r 3\ny = x + x").shown
    assert "y = x + x" in windows.run("%%cudatime --lines\ny = x + x").shown
    for line in ("%gpumem", "%gpumem vars", "%gpu -p", "%gpu doctor"):
        assert windows.run(line).shown


def test_what_needs_posix_says_so(windows: Kernel) -> None:
    windows.run("kept = 6 * 7")
    said = windows.run("%gpu restart", raising=False).shown
    assert "replace a running process" in said
    assert "Kernel > Restart" in said
    assert said.count("\n") == 1
    assert windows.value("kept") == 42, "nothing has changed"


def test_every_module_can_be_imported(windows: Kernel) -> None:
    windows.run(EVERY_MODULE)
    assert windows.value("len(names) > 50")
