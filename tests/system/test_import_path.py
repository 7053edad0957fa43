"""`gpumagic.system.import_path`: imports while a restart replaces the process."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpumagic.system import import_path

NAMES = ("module_of_the_notebook", "package_of_the_notebook", "namespace_of_the_notebook")


@pytest.fixture
def notebook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The working folder: modules that were imported from it, by ``''`` on the import path."""
    folder = tmp_path / "notebook"
    (folder / NAMES[1]).mkdir(parents=True)
    (folder / f"{NAMES[0]}.py").write_text("value = 'the notebook'\n")
    (folder / NAMES[1] / "__init__.py").touch()
    (folder / NAMES[1] / "inner.py").write_text("value = 'inner'\n")
    (folder / NAMES[2]).mkdir()
    (folder / NAMES[2] / "part.py").touch()
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    for name in (*NAMES, f"{NAMES[1]}.inner", f"{NAMES[2]}.part"):
        importlib.import_module(name)
    yield folder
    for name in [name for name in sys.modules if name.partition(".")[0] in (*NAMES, "other")]:
        del sys.modules[name]
    sys.path_importer_cache.clear()


def test_the_folders_of_the_modules(notebook: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = import_path.module_folders()
    assert {name: found.get(name) for name in NAMES} == dict.fromkeys(NAMES, str(notebook))
    assert not {"pytest", "gpumagic", "sys", "json", "__main__"} & {*found}
    monkeypatch.setattr(sys, "path", [str(notebook), *sys.path])
    assert not {*NAMES} & {*import_path.module_folders()}


def test_imports_are_restricted_to_them(notebook: Path, tmp_path: Path) -> None:
    """The working folder is another one now, with modules of the same names and one more."""
    folders = import_path.module_folders()
    for name in [name for name in sys.modules if name.partition(".")[0] in NAMES]:
        del sys.modules[name]
    other = tmp_path / "other"
    other.mkdir()
    for name in (NAMES[0], "other"):
        (other / f"{name}.py").write_text("value = 'planted'\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(other)
        before = [*sys.path], [*sys.meta_path]
        with import_path.restricted_to(folders):
            assert all(Path(each).is_absolute() for each in sys.path)
            assert importlib.import_module(NAMES[0]).value == "the notebook"
            assert importlib.import_module(f"{NAMES[1]}.inner").value == "inner"
            assert importlib.import_module("fractions") is not None
            with pytest.raises(ModuleNotFoundError):
                importlib.import_module("other")
        assert ([*sys.path], [*sys.meta_path]) == before
        importlib.invalidate_caches()
        assert importlib.import_module("other").value == "planted"


def test_the_finder_is_restored_after_an_error() -> None:
    before = list(sys.meta_path)
    with pytest.raises(KeyError), import_path.restricted_to({}):
        raise KeyError
    assert sys.meta_path == before
