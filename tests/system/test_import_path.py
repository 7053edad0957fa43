"""`gpumagic.system.import_path`: imports while a restart replaces the process."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpumagic.system import import_path
from gpumagic.system.import_path import Imports

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
    elsewhere = str(notebook.parent)
    found = Imports.of_this_process(elsewhere).folders
    assert {name: found.get(name) for name in NAMES} == dict.fromkeys(NAMES, str(notebook))
    assert not {"pytest", "gpumagic", "sys", "json", "__main__"} & {*found}
    monkeypatch.setattr(sys, "path", [str(notebook), *sys.path])
    assert {*NAMES} <= {*Imports.of_this_process(elsewhere).folders}
    monkeypatch.chdir(elsewhere)
    assert {*NAMES} <= {*Imports.of_this_process(str(notebook)).folders}
    assert not {*NAMES} & {*Imports.of_this_process(elsewhere).folders}


def test_the_working_folder_is_known_by_each_of_its_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, link = tmp_path / "folder", tmp_path / "link"
    folder.mkdir()
    link.symlink_to(folder)
    monkeypatch.chdir(folder)
    entries = ["", ".", str(folder), str(link), f"{folder}/", str(tmp_path), 7]
    assert import_path.trusted(entries, str(folder)) == [str(tmp_path)]
    assert import_path.trusted(entries, str(tmp_path)) == []
    assert import_path.trusted([import_path.OWN], import_path.OWN) == [import_path.OWN]


def test_empty_and_relative_entries_are_searched_by_no_child() -> None:
    given = {"PYTHONPATH": "::/usr:here", "LD_LIBRARY_PATH": ":/lib;./lib", "A": ""}
    found = {"PYTHONPATH": "/usr", "LD_LIBRARY_PATH": "/lib", "A": ""}
    assert import_path.absolute(given) == found
    assert import_path.absolute({"LD_LIBRARY_PATH": ":"}) == {}


def test_a_package_is_not_of_the_working_folder_for_a_folder_of_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A namespace package has a portion in each; that of the trusted path is imported."""
    library, folder = tmp_path / "library", tmp_path / "folder"
    for each in (library, folder):
        (each / "portions").mkdir(parents=True)
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", ["", str(library), *sys.path])
    try:
        assert len(importlib.import_module("portions").__path__) == 2
        assert "portions" not in Imports.of_this_process(str(folder)).folders
    finally:
        sys.modules.pop("portions", None)


def test_imports_are_restricted_to_them(notebook: Path, tmp_path: Path) -> None:
    """The working folder is another one now, with modules of the same names and one more."""
    imports = Imports.of_this_process("/")
    for name in [name for name in sys.modules if name.partition(".")[0] in NAMES]:
        del sys.modules[name]
    other = tmp_path / "other"
    other.mkdir()
    for name in (NAMES[0], "other"):
        (other / f"{name}.py").write_text("value = 'planted'\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(other)
        before = [*sys.path], [*sys.meta_path]
        with imports.alone():
            assert all(Path(each).is_absolute() for each in sys.path)
            assert importlib.import_module(NAMES[0]).value == "the notebook"
            assert importlib.import_module(f"{NAMES[1]}.inner").value == "inner"
            assert importlib.import_module("fractions") is not None
            with pytest.raises(ModuleNotFoundError):
                importlib.import_module("other")
        assert ([*sys.path], [*sys.meta_path]) == before
        with pytest.raises(KeyError), imports.alone():
            raise KeyError
        assert ([*sys.path], [*sys.meta_path]) == before
        with imports.alone():
            sys.path.insert(0, "/added")  # as some libraries do on their import
        assert sys.path == [*before[0], "/added"], "it hides no module of the user's"
        importlib.invalidate_caches()
        assert importlib.import_module("other").value == "planted"
