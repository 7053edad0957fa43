"""The architecture: imports go one way, and loading the extension imports next to nothing."""

from __future__ import annotations

import ast
import json
from collections.abc import Callable
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "gpumagic"

#: Each folder, lowest first, with the folders (or modules at the top) that it may import.
LAYOUT: dict[str, set[str]] = {
    "_version": set(),
    "errors": set(),
    "wording": set(),
    "system": {"errors"},
    "render": {"errors", "wording", "system"},
    "results": {"errors", "wording", "system", "render"},
    "cells": {"errors", "system"},
    "cuda": {"_version", "errors", "system", "results"},
    "selection": {"errors", "wording", "system", "render", "results", "cells", "cuda"},
    "timing": {"errors", "wording", "system", "render", "results", "cells", "cuda"},
    "memory": {"errors", "wording", "system", "render", "results", "cells", "cuda"},
    "restart": {"_version", "errors", "wording", "system", "results", "cells", "cuda"},
    "doctor": {"errors", "wording", "system", "render", "results", "cells", "cuda", "selection"},
    "cli": {"_version", "errors", "system", "render", "results", "cuda", "selection", "doctor"},
}
LAYOUT["cluster"] = {*LAYOUT} - {"cli", "doctor"}
LAYOUT["magics"] = {*LAYOUT} - {"cli"}
LAYOUT["public"] = {*LAYOUT} - {"cli"}
#: Who alone may import what comes from outside: a folder, or one module of it.
IMPORTERS = {
    "torch": {"cuda/pytorch"},
    "pynvml": {"cuda/nvml"},
    "IPython": {"magics", "cells", "cluster", "restart"},
    "traitlets": {"magics"},
    "rich": {"render/rich_classes"},
    "pygments": {"render/source_code"},
    "pandas": {"results/base"},
    "matplotlib": {"render/plots"},
    "cloudpickle": {"restart/variables/pickler", "restart/variables/settings"},
    "ipyparallel": {"cluster"},
    "psutil": {"cuda", "selection/claims", "restart", "system/host_memory"},
    "zmq": {"restart"},
    "subprocess": {"system/child_process"},
}


def modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def folder(path: Path) -> str:
    """``render`` for ``gpumagic/render/text.py``, ``errors`` for ``gpumagic/errors.py``."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


class Import(NamedTuple):
    """An import of a module, or of a name in one."""

    name: str
    line: int
    typing_only: bool


@cache
def imports(path: Path) -> list[Import]:
    """What a file imports, wherever in it."""
    tree, found = ast.parse(path.read_bytes()), list[Import]()
    typing_only = {
        id(node)
        for block in ast.walk(tree)
        if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING"
        for node in ast.walk(block)
    }
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}:{node.lineno}: imports are absolute here"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            names = [str(each.value) for each in node.args if isinstance(each, ast.Constant)]
        found += [Import(name, node.lineno, id(node) in typing_only) for name in names]
    return found


def test_every_module_has_a_place() -> None:
    unknown = {folder(path) for path in modules()} - {*LAYOUT, "__init__", "__main__"}
    assert not unknown, f"give {unknown} a place in LAYOUT"


def test_imports_go_one_way() -> None:
    wrong = []
    for path in modules():
        here = folder(path)
        if here in ("__init__", "__main__"):
            continue
        for name, line, _ in imports(path):  # those for types alone, too
            package, inside, *_ = (*name.split("."), "")
            if package == "gpumagic" and inside not in {here, *LAYOUT[here]}:
                wrong.append(f"{path.relative_to(ROOT)}:{line} imports {name}")
    assert not wrong, "\n".join(wrong)


def test_one_module_prints() -> None:
    """By `print`, or by a stream's ``write``, which fail with a stream of the user's."""
    children = {"cuda/probe.py", "restart/variables/trial/child.py"}  # what these print is read
    for path in modules():
        calls = [
            node.func
            for node in ast.walk(ast.parse(path.read_bytes()))
            if isinstance(node, ast.Call)
        ]
        wrong = {"print", "sys.stdout.write", "sys.stderr.write"} & {*map(ast.unparse, calls)}
        assert not wrong or str(path.relative_to(PACKAGE)) in children, f"{path} prints"


def test_folders_have_no_circle() -> None:
    done: list[str] = []
    for name in LAYOUT:
        assert LAYOUT[name] <= {*done}, f"{name} imports what is listed after it"
        done.append(name)


@pytest.mark.parametrize("inside", [name for name in LAYOUT if (PACKAGE / name).is_dir()])
def test_a_folder_has_no_circle(inside: str) -> None:
    """The files of a package, wherever in them they import one another."""
    files = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
        for path in (PACKAGE / inside).rglob("*.py")
    }
    graph = {
        name: {
            ours
            for each in imports(path)
            for ours in (each.name, each.name.rpartition(".")[0])
            if ours in files and ours != name
        }
        for name, path in files.items()
        if path.name != "__init__.py"  # imports the public names of what lies below it
    }
    order = [*TopologicalSorter(graph).static_order()]  # CycleError names the circle
    assert {*graph} <= {*order}


@pytest.mark.parametrize("package", IMPORTERS)
def test_what_comes_from_outside_has_its_importers(package: str) -> None:
    def may(path: Path) -> bool:
        place = path.relative_to(PACKAGE).with_suffix("").as_posix()
        return any(f"{place}/".startswith(f"{allowed}/") for allowed in IMPORTERS[package])

    wrong = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in modules()
        for name, line, typing_only in imports(path)
        if name.split(".")[0] == package and not typing_only and not may(path)
    ]
    assert not wrong, f"{package} is imported in {wrong}, not only in {IMPORTERS[package]}"


def test_files_stay_small() -> None:
    long = {
        str(path.relative_to(ROOT)): count
        for path in modules()
        if (count := len(path.read_bytes().splitlines())) > 400
    }
    assert not long, f"split these by subject: {long}"


LOADING = """
import json, sys, threading
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config
config = Config()
config.HistoryManager.enabled = False
ip = InteractiveShell.instance(config=config)
modules, threads = set(sys.modules), threading.active_count()
ip.run_line_magic("load_ext", "gpumagic")
print(json.dumps({
    "modules": sorted(set(sys.modules) - modules),
    "threads": threading.active_count() - threads,
    "driver": any("libcuda.so" in line for line in open("/proc/self/maps"))
              if sys.platform == "linux" else False,
}))
"""


def test_loading_imports_nothing_heavy(run_python: Callable[..., str]) -> None:
    """No torch, no pynvml, no rich, no pandas; no thread; the driver not opened."""
    found = json.loads(run_python(LOADING, fresh=True).splitlines()[-1])
    heavy = {
        "torch",
        "pynvml",
        "rich",
        "pandas",
        "numpy",
        "matplotlib",
        "argparse",
        "ctypes",
    }
    assert not heavy & {name.split(".")[0] for name in found["modules"]}
    assert found["threads"] == 0
    assert not found["driver"]


FIRST_USE = """
import sys
from tests.support.shells import run_cell, shell
def loaded(*folders):
    names = tuple(f"gpumagic.{folder}." for folder in folders)
    return sorted(name for name in sys.modules if name.startswith(names))
with shell() as ip:
    run_cell(ip, "import torch")
    run_cell(ip, "1")
    results = loaded("results")
    run_cell(ip, "%gpu")
    print(results, loaded("cluster", "doctor", "memory", "restart", "timing"), sep="|")
"""


def test_a_first_use_imports_what_it_needs(run_python: Callable[..., str]) -> None:
    """After torch's import, a cell none of the results; the device table no restart, no engines."""
    results, others = run_python(FIRST_USE).splitlines()[-1].split("|")
    assert ast.literal_eval(results) == []
    assert ast.literal_eval(others) == []
