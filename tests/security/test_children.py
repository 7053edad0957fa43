"""No process that gpumagic starts imports, or runs, what lies in the working folder."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpumagic.cuda import driver, probe
from gpumagic.doctor import system
from gpumagic.restart import command_line, variables
from gpumagic.system import child_process
from tests.security.traps import Traps
from tests.virtual_gpu import Scenario

pytestmark = pytest.mark.skipif(os.name == "nt", reason="the traps are for POSIX")


@pytest.fixture
def traps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Traps:
    """The working folder: full of traps, and named by every variable that can name it."""
    found = Traps(tmp_path)
    monkeypatch.chdir(found.folder)
    for name in ("PYTHONPATH", "LD_LIBRARY_PATH", "PATH"):
        # As `export PYTHONPATH=$PYTHONPATH:/some/where` makes it where there was none.
        monkeypatch.setenv(name, os.pathsep.join(["", ".", *filter(None, [os.environ.get(name)])]))
    monkeypatch.setenv("CUDA_HOME", ".")
    return found


def test_the_traps_work(traps: Traps) -> None:
    subprocess.run([sys.executable, "-c", "import json"], capture_output=True, check=False)
    assert traps.caught
    source = f"{child_process.WITHOUT_FOLDER}; import ctypes; ctypes.CDLL('libcuda.so.1')"
    alone = ["-P"] if sys.version_info >= (3, 11) else []  # 3.13 imports before it runs `-c`
    load = [sys.executable, "-S", "-E", *alone, "-c", source]
    done = subprocess.run(load, capture_output=True, text=True, check=False)
    assert "libcuda.so.1: " in done.stderr


def test_what_a_child_says_has_no_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python 3.13 colours tracebacks, and `FORCE_COLOR`, which ipykernel sets, also in a file."""
    for name in ("FORCE_COLOR", "PYTHON_COLORS"):
        monkeypatch.setenv(name, "1")
    failed = child_process.python("1 / 0", timeout=60)
    assert failed.stderr.splitlines()[-1] == "ZeroDivisionError: division by zero"
    for folder in (None, str(Path.cwd())):
        command = [sys.executable, "-c", "1 / 0"]
        with child_process.start(command, os.environ, folder, stderr=child_process.PIPE) as started:
            _, said = started.communicate()
        assert said.splitlines()[-1] == "ZeroDivisionError: division by zero"
    coloured = "Traceback:\n\x1b[1;35mKeyError\x1b[0m: \x1b[35m'a'\x1b[0m\n"
    assert child_process.reason(coloured) == "KeyError: 'a'"


def test_torch_asked_in_a_child(traps: Traps) -> None:
    build, start = probe.in_child({}, timeout=600)
    assert (build.error, build.compiled, start.said) == (None, True, None)
    assert start.count
    assert traps.caught == []


def test_the_driver_asked_in_a_child(traps: Traps) -> None:
    assert len(driver.list_in_child(timeout=600)) == 4
    assert traps.caught == []


def test_the_new_process_tried_in_a_child(traps: Traps, tmp_path: Path) -> None:
    """It starts where the kernel was started, not where the user has changed to."""
    words = [sys.executable, command_line.LOADER, "-m", "ipykernel_launcher"]
    with command_line.Trial(words, os.environ, "kernel", str(tmp_path)) as trial:
        trial.result()
    assert traps.caught == []


def test_kept_variables_tried_in_a_child(traps: Traps, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even where the notebook's own import path begins with the working folder.

    From there comes what was imported from there, and nothing else.
    """
    import torch

    (traps.folder / "of_the_notebook.py").write_text("class Mine: pass\n")
    monkeypatch.syspath_prepend(str(traps.folder))
    mine = importlib.import_module("of_the_notebook")
    monkeypatch.setattr(sys, "path", ["", ".", *filter(os.path.isabs, sys.path[1:])])
    home = {"seven": 7, "tensor": torch.zeros(3), "mine": mine.Mine()}
    chosen = variables.plan(home, home, home)
    assert chosen.failures == {}
    files = variables.save(chosen, lambda folder: tempfile.TemporaryFile(dir=folder))  # noqa: SIM115
    trial = variables.Trial(files[0], dict(os.environ))
    try:
        assert trial.failures(lambda: None) == {}
    finally:
        trial.close()
        variables.close(files)
        del sys.modules["of_the_notebook"]
    assert traps.caught == []


def test_the_compiler(traps: Traps, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Neither by ``PATH`` nor by ``CUDA_HOME`` is it one in the working folder."""
    monkeypatch.delenv("GPUMAGIC_ROOT", raising=False)
    (traps.folder / "bin").mkdir()
    (traps.folder / "bin" / "nvcc").write_text((traps.folder / "nvcc").read_text())
    (traps.folder / "bin" / "nvcc").chmod(0o755)
    system.toolkit()
    assert traps.caught == []
    real = tmp_path / "nvcc"
    real.write_text(f"#!/bin/sh\npwd > {tmp_path}/where\necho 'Cuda tools, release 12.4, V1'\n")
    real.chmod(0o755)
    monkeypatch.setenv("PATH", f"{os.environ['PATH']}{os.pathsep}{tmp_path}")
    found = system.toolkit()
    assert found is not None
    if found.path == str(real):
        assert found.version == (12, 4)
        assert (tmp_path / "where").read_text().strip() == str(Path(sys.prefix).resolve())


def test_a_program_is_looked_for_in_absolute_folders(traps: Traps) -> None:
    assert child_process.program("nvcc", ["", ".", os.curdir, str(traps.folder.parent)]) is None
    assert child_process.program("nvcc", [str(traps.folder)]) == str(traps.folder / "nvcc")


def test_a_folder_that_cannot_be_looked_into_has_no_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which holds up none of the folders after it."""
    (tmp_path / "nvcc").write_text("#!/bin/sh\n")
    (tmp_path / "nvcc").chmod(0o755)
    look = os.stat

    def refuse(path: Any, **options: Any) -> os.stat_result:
        if "closed" in os.fspath(path):
            raise PermissionError(13, "Permission denied")
        return look(path, **options)

    monkeypatch.setattr(os, "stat", refuse)  # as the superuser may enter every folder
    folders = [f"{tmp_path}/closed", f"/{'x' * 5000}", "/\0", str(tmp_path)]
    assert child_process.program("nvcc", folders) == str(tmp_path / "nvcc")


@pytest.mark.parametrize("words", [(), ("table", "--json")])
def test_the_command_line(
    traps: Traps, child_environment: Callable[..., dict[str, str]], words: tuple[str, ...]
) -> None:
    """As its installed script starts it."""
    script = traps.folder.parent / "gpumagic"
    script.write_text("import sys\nfrom gpumagic.cli import main\nsys.exit(main())\n")
    path = os.pathsep.join(filter(os.path.isabs, os.environ["PYTHONPATH"].split(os.pathsep)))
    done = subprocess.run(
        [sys.executable, str(script), *words],
        env=child_environment(Scenario(devices=2), {"PYTHONPATH": path}),
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert traps.caught == []
    assert "Virtual" in done.stdout or "GPU" in done.stdout


def test_the_command_line_by_its_module(
    traps: Traps, child_environment: Callable[..., dict[str, str]]
) -> None:
    """Python itself imports from the folder then; what gpumagic imports comes from elsewhere."""
    for each in traps.folder.glob("*.py"):
        if each.stem in sys.stdlib_module_names or each.stem == "gpumagic":
            each.unlink()  # a stranger's gpumagic would be all that runs
    path = os.pathsep.join(filter(os.path.isabs, os.environ["PYTHONPATH"].split(os.pathsep)))
    for module in ("sitecustomize", "usercustomize"):
        (traps.folder / f"{module}.py").unlink()
    subprocess.run(
        [sys.executable, "-m", "gpumagic"],
        env=child_environment(Scenario(devices=2), {"PYTHONPATH": path}),
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert traps.caught == []
