"""The notebook's variables in file names on a magic's line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpumagic.errors import SpecError
from gpumagic.magics.file_names import check_expanded, expanded
from tests.support.shells import Ran

Run = Callable[..., Ran]


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("step.json", "step.json"),
        ("$name", "step"),
        ("{name}.json", "step.json"),
        ("{folder / name}.json", str(Path("a b", "step.json"))),
        ("run-{number + 1}", "run-8"),
        ("$$name", "$name"),
        ("{{name}}", "{name}"),
        ("price$", "price$"),
        ("$1.json", "$1.json"),
        ("{}.json", "{}.json"),
    ],
)
def test_variables_are_expanded_as_ipython_does(ip: Any, text: str, name: str) -> None:
    ip.user_ns.update(name="step", folder=Path("a b"), number=7)
    assert expanded(ip, text) == name
    with pytest.raises(SpecError, match=r"'\$name' cannot be expanded; write \{name\}, or "):
        expanded(ip, "$name.json")  # an attribute
    with pytest.raises(SpecError, match=r"'\{name.x\}' cannot be expanded; this expression fails"):
        expanded(ip, "{name.x}")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "$fn",
            r"'\$fn' names no file: '\$fn' cannot be expanded; set fn first, or write \$\$fn for ",
        ),
        ("a-{fn}.json", r"'\{fn\}' cannot be expanded; set fn first, or write \{\{fn\}\} for "),
        ("{shell}/{text}", r"'\{shell\}' cannot be expanded"),  # variables of gpumagic's own frames
        ("$HOME/x.json", r"set HOME first"),
    ],
)
def test_a_variable_that_is_not_there_is_refused(ip: Any, text: str, says: str) -> None:
    with pytest.raises(SpecError, match=says) as raised:
        expanded(ip, text)
    assert "\n" not in str(raised.value)
    with pytest.raises(SpecError) as checked:
        check_expanded(text)
    assert str(raised.value).startswith(f"{checked.value}, or write ")


@pytest.mark.parametrize(
    "line",
    [
        "%%cudatime --save {}",
        "%%cudatime --against {}",
        "%%cudatime -n 1 -r 2 --save {}",
        "%%cudatime --trace {}",
        "%%gpumem --save {}",
        "%%gpumem --against {}",
    ],
)
def test_no_cell_runs_with_such_a_name(
    ip: Any, run_cell: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    monkeypatch.chdir(tmp_path)
    ran = run_cell(f"{line.format('$fn')}\nhas_run = True", raising=False)
    assert "'$fn' cannot be expanded" in str(ran.error)
    assert "has_run" not in ip.user_ns
    assert list(tmp_path.iterdir()) == []


def test_the_files_have_the_names_of_the_variables(ip: Any, run_cell: Run, tmp_path: Path) -> None:
    run_cell("import torch\ntorch.empty(1, device='cuda')")
    ip.user_ns["fn"] = tmp_path / "of $one run.json"
    run_cell("%%cudatime --save {fn}\n1")
    run_cell("%%cudatime -q --against $fn\n1")
    run_cell("%%gpumem --save '{fn}.memory'\n1")
    names = {"of $one run.json", "of $one run.json.memory"}
    assert {path.name for path in tmp_path.iterdir()} == names
