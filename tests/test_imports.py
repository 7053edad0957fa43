"""The architecture: imports go one way, and loading the extension imports next to nothing."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "gpumagic"

#: Each room, from the ground up, with the rooms that it may import. A module that is not listed
#: here has no place in the house yet: give it one.
ROOMS: dict[str, set[str]] = {
    "errors": set(),
    "one_line": set(),
    "system_files": set(),
    "results": {"errors"},
    "mask": {"results"},
    "visibility": {"results", "errors", "mask"},
    "child": set(),
    "driver": {"errors", "child"},
    "foreign": set(),
    "frames": {"errors", "foreign"},
    "import_places": {"foreign"},
    "processes": {"results"},
    "restart": {"errors", "one_line", "frames", "child", "import_places", "processes"},
    "torch_cuda": {"errors", "one_line", "driver"},
    "torch_build": set(),
    "runtime": {"errors", "child", "torch_cuda", "torch_build"},
    "threads": {"results", "errors", "visibility", "torch_cuda", "system_files"},
    "nvml_check": {"system_files"},
    "import_notes": set(),
    "witness": {"driver", "nvml_check", "import_notes"},
    "plain_tensors": {"torch_cuda"},
    "keep": {
        *("errors", "frames", "torch_cuda", "plain_tensors", "child", "import_places", "foreign"),
    },
    "own_file": set(),
    "paths": {"errors", "one_line"},
    "saved": {"errors", "own_file"},
    "nvml": {"results", "errors"},
    "loop": {"errors"},
    "measured": {"errors"},
    "awaited": set(),
    "cell": {"awaited", "errors", "loop"},
    "inventory": {
        *("results", "errors", "visibility", "driver", "nvml", "torch_cuda", "system_files"),
        "processes",
    },
    "choice": {"mask", "torch_cuda"},
    "failed_start": {"results", "visibility", "driver", "torch_cuda", "runtime", "nvml_check"},
    "selection": {
        *("results", "errors", "mask", "visibility", "driver", "nvml", "torch_cuda"),
        *("runtime", "inventory", "witness", "failed_start", "choice"),
    },
    "gate": {"results", "errors", "visibility", "driver", "torch_cuda", "inventory"},
    "kernelspec": {"errors", "visibility", "inventory"},
    "cell_hooks": set(),
    "timing": {
        "results",
        "errors",
        "one_line",
        "nvml",
        "driver",
        "torch_cuda",
        "loop",
        "cell_hooks",
        "measured",
        "paths",
    },
    "memory": {
        "results",
        "errors",
        "one_line",
        "torch_cuda",
        "inventory",
        "cell_hooks",
        "frames",
        "foreign",
        "plain_tensors",
        "measured",
        "paths",
    },
    "display": {"results", "errors", "one_line"},
}
ROOMS["doctor"] = {"results", "errors", "visibility", "driver", "nvml", "torch_cuda", "runtime"}
ROOMS["doctor"] |= {"inventory", "choice", "selection", "threads", "witness", "gate"}
ROOMS["doctor"] |= {"system_files", "child"}
ROOMS["explain"] = {"results", "errors", "driver", "runtime", "inventory", "witness", "doctor"}
ROOMS["explain"] |= {"failed_start", "foreign", "frames", "nvml"}
ROOMS["commands"] = {"errors", "inventory", "doctor", "kernelspec", "display"}
ROOMS["cluster"] = {"results", "errors", "visibility", "restart", "torch_cuda", "inventory"}
ROOMS["cluster"] |= {"mask", "choice", "selection", "display", "own_file", "child", "one_line"}
ROOMS["cluster"] |= {"paths"}
ROOMS["magics"] = {*ROOMS}
#: Who alone may import what comes from outside.
OWNERS = {
    "torch": {"torch_cuda", "torch_build"},
    "pynvml": {"nvml"},
    "IPython": {"magics", "cell", "cluster", "restart"},
    "traitlets": {"magics"},
    "rich": {"display"},
    "pandas": {"results"},
    "matplotlib": {"display"},
    "cloudpickle": {"keep"},
    "ipyparallel": {"cluster"},
    "subprocess": {"child"},
}


def modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def room(path: Path) -> str:
    """``gpumagic/display/text.py`` and ``gpumagic/display/__init__.py`` are in ``display``."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported(path: Path) -> Iterator[tuple[str, int]]:
    """Every module that a file imports, wherever in it, with the line; not for typing only."""
    tree = ast.parse(path.read_bytes())
    typing_only = {
        id(node)
        for block in ast.walk(tree)
        if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING"
        for node in ast.walk(block)
    }
    for node in ast.walk(tree):
        if id(node) in typing_only:
            continue
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}:{node.lineno}: imports are absolute here"
            if node.module == "gpumagic":
                yield from ((f"gpumagic.{alias.name}", node.lineno) for alias in node.names)
            else:
                yield node.module or "", node.lineno
        elif (
            isinstance(node, ast.Call)
            and ast.unparse(node.func) in ("import_module", "importlib.import_module")
            and isinstance(node.args[0], ast.Constant)
        ):
            yield str(node.args[0].value), node.lineno


def test_every_module_has_a_room() -> None:
    unknown = {room(path) for path in modules()} - {*ROOMS, "__init__", "__main__"}
    assert not unknown, f"give {unknown} a place in ROOMS"


def test_imports_go_one_way() -> None:
    wrong = []
    for path in modules():
        here = room(path)
        if here in ("__init__", "__main__"):
            continue
        for name, line in imported(path):
            parts = name.split(".")
            if parts[0] != "gpumagic" or len(parts) < 2 or parts[1] in (here, "__version__"):
                continue
            # Results show themselves; the drawing is loaded by name when one is first shown.
            if (here, parts[1]) == ("results", "display"):
                continue
            if parts[1] not in ROOMS[here]:
                wrong.append(f"{path.relative_to(ROOT)}:{line} imports {name}")
    assert not wrong, "\n".join(wrong)


def test_the_house_has_no_circle() -> None:
    done: list[str] = []
    for name in ROOMS:
        assert ROOMS[name] <= {*done, name}, f"{name} imports a room that is listed after it"
        done.append(name)


@pytest.mark.parametrize("inside", ["timing", "memory", "magics", "results", "display"])
def test_a_room_has_no_circle(inside: str) -> None:
    """The files of a package, wherever in them they import one another."""
    files = {f"gpumagic.{inside}.{path.stem}": path for path in (PACKAGE / inside).glob("*.py")}
    del files[f"gpumagic.{inside}.__init__"]
    graph = {name: {*_of_ours(path, files)} for name, path in files.items()}
    TopologicalSorter(graph).prepare()  # raises CycleError, which names the circle


def _of_ours(path: Path, files: Mapping[str, Path]) -> Iterator[str]:
    tree = ast.parse(path.read_bytes())
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            named = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from {node.module, *named} & files.keys()


@pytest.mark.parametrize("package", OWNERS)
def test_what_comes_from_outside_has_one_door(package: str) -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in modules()
        for name, line in imported(path)
        if name.split(".")[0] == package and room(path) not in OWNERS[package]
    ]
    assert not wrong, f"{package} is imported in {wrong}, not only in {OWNERS[package]}"


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


def test_loading_imports_nothing_heavy(child_environment: Callable[..., dict[str, str]]) -> None:
    """No torch, no pynvml, no rich, no pandas; no thread; the driver not opened."""
    done = subprocess.run(
        [sys.executable, "-c", LOADING],
        env=child_environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    found = json.loads(done.stdout.splitlines()[-1])
    heavy = {
        "torch",
        "pynvml",
        "rich",
        "pandas",
        "numpy",
        "matplotlib",
        "tqdm",
        "argparse",
        "ctypes",
    }
    assert not heavy & {name.split(".")[0] for name in found["modules"]}
    assert found["threads"] == 0
    assert not found["driver"]
    ours = {name for name in found["modules"] if name.startswith("gpumagic")}
    assert ours <= {
        "gpumagic",
        "gpumagic.magics",
        "gpumagic.magics.extension",
        "gpumagic.awaited",
        "gpumagic.cell",
        "gpumagic.errors",
        "gpumagic.import_notes",
        "gpumagic.loop",
        "gpumagic.nvml_check",
        "gpumagic.witness",
    }
