"""Child processes: what they print, and where programs are looked for."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from gpumagic.system import child_process
from tests.support.planted_modules import PlantedModules

pytestmark = pytest.mark.skipif(os.name == "nt", reason="the planted files are for POSIX")


def test_a_childs_traceback_has_no_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python 3.13 colours tracebacks, and `FORCE_COLOR`, which ipykernel sets, also in a file."""
    for name in ("FORCE_COLOR", "PYTHON_COLORS"):
        monkeypatch.setenv(name, "1")
    failed = child_process.python("1 / 0", timeout=300)
    assert failed.stderr.splitlines()[-1] == "ZeroDivisionError: division by zero"
    for folder in (None, str(Path.cwd())):
        command = [sys.executable, "-c", "1 / 0"]
        with child_process.start(command, os.environ, folder, stderr=child_process.PIPE) as started:
            _, output = started.communicate()
        assert output.splitlines()[-1] == "ZeroDivisionError: division by zero"
    coloured = "Traceback:\n\x1b[1;35mKeyError\x1b[0m: \x1b[35m'a'\x1b[0m\n"
    assert child_process.last_error(coloured) == "KeyError: 'a'"


def test_a_program_is_looked_for_in_absolute_folders(planted: PlantedModules) -> None:
    assert (
        child_process.find_program("nvcc", ["", ".", os.curdir, str(planted.folder.parent)]) is None
    )
    assert child_process.find_program("nvcc", [str(planted.folder)]) == str(planted.folder / "nvcc")


def test_a_folder_that_cannot_be_read_has_no_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folders after it are searched."""
    (tmp_path / "nvcc").write_text("#!/bin/sh\n")
    (tmp_path / "nvcc").chmod(0o755)
    look = os.stat

    def refuse(path: Any, **options: Any) -> os.stat_result:
        if "closed" in os.fspath(path):
            raise PermissionError(13, "Permission denied")
        return look(path, **options)

    monkeypatch.setattr(os, "stat", refuse)  # as the superuser may enter every folder
    folders = [f"{tmp_path}/closed", f"/{'x' * 5000}", "/\0", str(tmp_path)]
    assert child_process.find_program("nvcc", folders) == str(tmp_path / "nvcc")
