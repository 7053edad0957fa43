"""The globals that functions use, and the names that imports have bound."""

from __future__ import annotations

import collections
import importlib
import os.path
import sys
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import pytest

from gpumagic.restart.variables import names


def _code(source: str) -> CodeType:
    namespace: dict[str, Any] = {}
    exec(source, namespace)
    code: CodeType = namespace["f"].__code__
    return code


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("def f(): return a + b", {"a", "b"}),
        ("def f(a): return a.b", set()),
        ("def f():\n    def g(): return c\n    return g", {"c"}),
        ("def f():\n    class C:\n        x = d\n    return C", {"d", "__name__"}),
        ("def f(): return [e for _ in ()]", {"e"}),
        ("def f():\n    import g\n    return g", set()),
        ("def f():\n    global h\n    h = 1", set()),
    ],
)
def test_global_names(source: str, expected: set[str]) -> None:
    assert names.global_names(_code(source)) == expected


def test_imports_that_can_bind_a_name_again() -> None:
    variables: dict[str, Any] = {
        "path": os.path,
        "deque": collections.deque,
        "wraps": __import__("functools").wraps,
        "environ": os.environ,
        "os": os,
        "mine": 5,
        "made": ModuleType("made_by_code"),
        "print": print,
    }
    found = names.imports(variables, ["from os import environ\nimport os.path", "%magic ("])
    assert found == {
        "path": (os.path.__name__, None),
        "deque": ("collections", "deque"),
        "wraps": ("functools", "wraps"),
        "environ": ("os", "environ"),
        "os": ("os", None),
        "os.path": ("os.path", None),
    }
    # Without the source nothing says where data came from.
    assert "environ" not in names.imports(variables, [])
    assert names.imports({"OrderedDict": collections.OrderedDict}, ["from collections import *"])


@pytest.mark.parametrize(
    ("module", "found"),
    [("os.path", True), ("__main__", False), ("no_such_module", False), ("os.no.such", False)],
)
def test_importable(module: str, found: bool) -> None:
    assert names.importable(module) is found


def test_what_came_from_a_file_that_is_gone_cannot_be_imported_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    file = tmp_path / "module_that_goes_away.py"
    file.write_text("def f(): pass\nTABLE = {}\n")
    module: Any = importlib.import_module(file.stem)
    variables = {"f": module.f, "TABLE": module.TABLE, "m": module}
    sources = [f"from {file.stem} import TABLE"]
    try:
        assert names.imports(variables, sources).keys() == {"f", "TABLE", "m"}
        file.unlink()
        assert not names.imports(variables, sources)
    finally:
        del sys.modules[file.stem]


def test_data_of_the_users_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "users_data_module.py").write_text("TABLE = {}\nNUMBER = 3\ndef f(): pass\n")
    module: Any = importlib.import_module("users_data_module")
    try:
        found = names.data_of_modules()
        assert found[id(module.TABLE)] == [("users_data_module", "TABLE")]
        assert id(module.f) not in found
        assert names.is_users_data(module.TABLE, ("users_data_module", "TABLE"))
        assert not names.is_users_data(module.f, ("users_data_module", "f"))
        assert not names.is_users_data(module, ("users_data_module", None))
        assert not names.is_users_data(os.environ, ("os", "environ"))
    finally:
        del sys.modules["users_data_module"]


def test_nothing_is_imported_that_was_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cell that did not run, or failed, imports; a module that loads when it is first used."""
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "never_imported_of_names.py").write_text("raise SystemExit")
    import xml.dom

    # Another test of this process may have imported it.
    monkeypatch.delitem(sys.modules, "xml.dom.expatbuilder", raising=False)
    monkeypatch.delattr(xml.dom, "expatbuilder", raising=False)
    for module in ("never_imported_of_names", "xml.dom.expatbuilder", "os.no.such"):
        assert module not in sys.modules
        assert not names.importable(module)
        assert module.partition(".")[0] == module or module not in sys.modules
    found = names.imports({"xml": xml}, ["import xml.dom, xml.dom.expatbuilder"])
    assert found == {"xml": ("xml", None), "xml.dom": ("xml.dom", None)}

    class Lazy(ModuleType):
        def __getattribute__(self, name: str) -> Any:
            raise AssertionError(f"asked for {name}")

    assert names.imports({"lazy": Lazy("os")}, []) == {"lazy": ("os", None)}
