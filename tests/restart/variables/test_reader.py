"""Kept variables read from their files: as one graph, one by one, or from a folder later."""

from __future__ import annotations

import importlib
import os
import shutil
import sys
from pathlib import Path

import pytest

from gpumagic.restart import variables as keep
from tests.restart.variables.files import CELL, create, kept, restored
from tests.restart.variables.runner import new_namespace


def test_one_that_does_not_load_takes_no_other_with_it(module: Path, tmp_path: Path) -> None:
    _, files = kept(CELL)
    sys.modules.pop("users_module_of_keep")
    source = module.read_text()
    module.write_text("raise ImportError('broken since')")
    importlib.invalidate_caches()
    namespace, outcome = restored(files)
    assert outcome.names == ["shared", "also"]
    assert outcome.failures == {"m": "broken since", "both": "broken since"}
    assert outcome.not_imported == {"M": "broken since"}
    assert outcome.separate_because == "broken since"
    assert namespace["shared"] == namespace["also"] == [1]
    folder = keep.preserve(files)
    assert Path(folder).stat().st_mode & 0o777 == 0o700
    assert all(path.stat().st_mode & 0o077 == 0 for path in Path(folder).iterdir())
    with pytest.raises(ImportError, match="broken since"):
        keep.load(folder, "m")
    with pytest.raises(KeyError, match="nothing"):
        keep.load(folder, "nothing")
    assert keep.load(folder).keys() == {"shared", "also"}
    module.write_text(source)
    os.utime(module, (1, 1))  # another time than the cached bytecode's
    importlib.invalidate_caches()
    assert keep.load(folder, "m")["m"].a == 1
    keep.close(files)
    shutil.rmtree(folder)


DATA = """
import threading
REGISTRY = {}
settings = {"lr": 1}
HANDLE = open("/dev/null")
NUMBER = 5
class Net: pass
def register(name): REGISTRY[name] = len(REGISTRY)
"""
USES = """
from users_module_of_keep import REGISTRY, settings as cfg, HANDLE, NUMBER, register, Net
register("one"); cfg["lr"] = 2
class Trainer:
    def __init__(self): self.cfg = cfg
trainer = Trainer()
"""


def test_what_belongs_to_a_module_too_is_still_the_same(module: Path) -> None:
    """`from mymod import REGISTRY`: what is kept is the module's afterwards too."""
    module.write_text(DATA)
    chosen, files = kept(USES, sources=[USES])
    sys.modules.pop("users_module_of_keep").HANDLE.close()
    namespace, outcome = restored(files)
    assert (chosen.failures, outcome.failures, outcome.separate_because) == ({}, {}, None)
    fresh = sys.modules["users_module_of_keep"]
    assert namespace["REGISTRY"] is fresh.REGISTRY
    assert namespace["cfg"] is namespace["trainer"].cfg is fresh.settings == {"lr": 2}
    namespace["register"]("two")
    assert namespace["REGISTRY"] == {"one": 0, "two": 1}
    # What cannot be kept is the module's.
    assert namespace["HANDLE"] is fresh.HANDLE
    assert outcome.imported == ["register", "Net", "HANDLE"]
    assert outcome.names == ["REGISTRY", "cfg", "NUMBER", "Trainer", "trainer"]
    fresh.HANDLE.close()
    keep.close(files)


def test_what_is_not_asked_for_is_imported_again(module: Path) -> None:
    module.write_text(DATA)
    namespace = new_namespace()
    exec(USES, namespace)
    variables = {name: value for name, value in namespace.items() if not name.startswith("__")}
    chosen = keep.plan(namespace, [], variables, sources=[USES])
    files = keep.write(chosen, create)
    sys.modules.pop("users_module_of_keep").HANDLE.close()
    namespace, outcome = restored(files)
    assert (namespace["REGISTRY"], namespace["cfg"], outcome.names) == ({}, {"lr": 1}, [])
    namespace["HANDLE"].close()
    keep.close(files)


def test_an_import_that_fails_is_said(module: Path) -> None:
    _, files = kept("import users_module_of_keep as u\nx = 1")
    sys.modules.pop("users_module_of_keep")
    module.unlink()
    importlib.invalidate_caches()
    namespace, outcome = restored(files)
    assert outcome.not_imported == {"u": "No module named 'users_module_of_keep'"}
    assert (namespace["x"], outcome.names, outcome.separate_because) == (1, ["x"], None)
    keep.close(files)


@pytest.mark.skipif(os.name == "nt", reason="Windows has no owners and modes")
def test_kept_variables_are_loaded_from_a_folder_of_ones_own(tmp_path: Path) -> None:
    """Loading runs code: another user may have replaced the folder in /tmp."""
    folder = tmp_path / "kept"
    folder.mkdir(mode=0o700)
    (folder / "variables").write_bytes(b"")
    (tmp_path / "link").symlink_to(folder)
    with pytest.raises(PermissionError, match="not a folder of this user's"):
        keep.load(str(tmp_path / "link"))
    folder.chmod(0o770)
    with pytest.raises(PermissionError, match="not a folder of this user's"):
        keep.load(str(folder))
    folder.chmod(0o700)
    with pytest.raises(OSError, match="Invalid argument"):  # there is nothing in it
        keep.load(str(folder))
