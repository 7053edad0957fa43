"""The notebook's variables in file names on a magic's line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gpumagic.errors import SpecError
from gpumagic.magics.file_names import check_expanded, expanded


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("$name", "step"),
        ("{name}.json", "step.json"),
        ("run-{number + 1}", "run-8"),
        ("$$name", "$name"),
        ("{{name}}", "{name}"),
        *((each, each) for each in ("step.json", "price$", "$1.json", "{}.json")),
    ],
)
def test_variables_are_expanded_as_ipython_does(ip: Any, text: str, name: str) -> None:
    ip.user_ns.update(name="step", number=7)
    assert expanded(ip, text) == name


@pytest.mark.parametrize("text", ["$fn", "a-{fn}.json", "{shell}/{text}"])
def test_a_variable_that_is_not_there_is_refused(ip: Any, text: str) -> None:
    for check in (lambda: expanded(ip, text), lambda: check_expanded(text)):
        with pytest.raises(SpecError, match=r"cannot be expanded; set \w+ first"):
            check()


@pytest.mark.parametrize("line", ["%%cudatime --save {}", "%%gpumem --against {}"])
def test_no_cell_runs_with_such_a_name(
    ip: Any, run_cell: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    monkeypatch.chdir(tmp_path)
    ran = run_cell(f"{line.format('$fn')}\nhas_run = True", raising=False)
    assert "'$fn' cannot be expanded" in str(ran.error)
    assert "has_run" not in ip.user_ns
    assert list(tmp_path.iterdir()) == []
