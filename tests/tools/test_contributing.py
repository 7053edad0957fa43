"""CONTRIBUTING.md agrees with the tree: its files, functions, fixtures and imports exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from tests.support.kernels import ROOT
from tests.test_imports import LAYOUT

PACKAGE = ROOT / "gpumagic"
TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
#: What is between backquotes, not in a block of commands.
QUOTED = re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", TEXT, flags=re.DOTALL))
STEPS = [quoted for quoted in QUOTED if re.fullmatch(r"[\w/]+\.py: [\w.]+", quoted)]
#: Made by a tool, a place of the system, or a name that several folders have.
ELSEWHERE = re.compile(r"build/|\.venv|/|__init__\.py$|README\.md$|command\.py$")


def found(name: str) -> Path | None:
    """The file or folder of this name, in the package or in the checkout."""
    return next((place / name for place in (PACKAGE, ROOT) if (place / name).exists()), None)


def names(path: Path) -> set[str]:
    """The functions, classes, methods and variables that a module defines, by qualified name."""
    defined: set[str] = set()

    def visit(body: list[ast.stmt], prefix: str) -> None:
        for node in body:
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                defined.add(prefix + node.name)
            if isinstance(node, ast.ClassDef):
                visit(node.body, f"{prefix}{node.name}.")
            targets = node.targets if isinstance(node, ast.Assign) else []
            targets = [node.target] if isinstance(node, ast.AnnAssign) else targets
            defined.update(prefix + each.id for each in targets if isinstance(each, ast.Name))

    visit(ast.parse(path.read_bytes()).body, "")
    return defined


def table(header: str) -> list[list[str]]:
    """The cells of the table whose first column has this header."""
    start = TEXT.index(f"| {header} |")
    lines = TEXT[start:].split("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in lines]


def test_every_step_exists() -> None:
    assert len(STEPS) > 40
    wrong = []
    for step in STEPS:
        file, _, name = step.partition(": ")
        path = found(file)
        if path is None or name not in names(path):
            wrong.append(step)
    assert not wrong


def test_every_file_and_folder_exists() -> None:
    quoted = {word for each in QUOTED for word in re.split(r"[\s:]+", each) if "=" not in word}
    paths = {word for word in quoted if re.fullmatch(r"[\w./-]+(/|\.(py|md|toml|json|yaml))", word)}
    paths = {path for path in paths if not ELSEWHERE.match(path)}
    assert len(paths) > 60
    assert not sorted(path for path in paths if found(path) is None)


def test_what_is_named_in_a_module_is_there() -> None:
    """``NAME`` of ``file.py``, as the steps of a new magic have them."""
    named = re.findall(r"((?:`\w+`(?: and )?)+)\s+of\s+`([\w/]+\.py)`", TEXT)
    assert len(named) >= 4
    for quoted, file in named:
        path = found(file)
        assert path is not None, file
        assert {*re.findall(r"\w+", quoted)} - {"and"} <= names(path), file


def test_the_layout_is_that_of_the_imports() -> None:
    layout: dict[str, set[str]] = {}
    for places, _, imports in table("place"):
        here = [place.removesuffix(".py").rstrip("/") for place in re.findall(r"`(.+?)`", places)]
        may, _, but = imports.partition(" but ")
        allowed = {*layout} - {but} if may == "all above" else {*may.split(", ")} - {"nothing"}
        layout.update(dict.fromkeys(here, allowed))
    assert layout == LAYOUT


def test_there_are_ten_changes() -> None:
    rows = table("to change")
    assert len(rows) >= 10
    for change, places in rows:
        assert re.findall(r"`[\w/]+(?:\.py|/)", places), change


def test_the_fixtures_exist() -> None:
    sources = [*(ROOT / "tests").rglob("conftest.py"), *(ROOT / "tests/support").glob("*.py")]
    sources += [ROOT / "tests/virtual_gpu/plugin.py"]
    arguments: dict[str, set[str]] = {}
    for path in sources:
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.FunctionDef) and any(
                "fixture" in ast.unparse(each) for each in node.decorator_list
            ):
                inner = [each for each in ast.walk(node) if isinstance(each, ast.FunctionDef)]
                arguments[node.name] = {
                    a.arg for f in inner for a in (*f.args.args, *f.args.kwonlyargs)
                }
    rows = table("fixture")
    assert len(rows) > 8
    for cells in rows:
        for quoted in re.findall(r"`([^`]+)`", cells[0]):
            name, _, rest = quoted.rstrip(")").partition("(")
            assert name in arguments, quoted
            options = {each.split("=")[0] for each in rest.split(", ") if "=" in each}
            assert options <= arguments[name], quoted
