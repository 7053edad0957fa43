"""Names of a session: the user's first, none that is hidden or named already."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpumagic.magics import session_names
from gpumagic.magics.session_names import Completion, Session

SESSION = Session(
    {"model": 1, "step": len, "_hidden": 1, "In": []},
    statement_names=lambda beginning: ("model", "map", "mod"),
    attributes=lambda expression: ("a.one", "a._two"),
)


def test_variables() -> None:
    assert [*session_names.names(SESSION)] == ["model", "step"]
    assert [*session_names.variables(SESSION, ["model"])] == [Completion("step", "variable")]
    assert [*session_names.functions(SESSION)] == [Completion("step", "function")]


def test_names_of_a_statement() -> None:
    found = [each.text for each in session_names.statement_names("m", SESSION)]
    assert found == ["model", "step", "map", "mod"]
    assert [each.text for each in session_names.statement_names("", SESSION)] == ["model", "step"]
    assert not [*session_names.statement_names("m.", SESSION)]
    found = [each.text for each in session_names.statement_names("m", SESSION, ["map", "step"])]
    assert found == ["model", "mod"]


def test_private_attributes_are_left_out() -> None:
    assert [each.text for each in session_names.attributes("a.", SESSION)] == ["a.one"]
    assert [each.text for each in session_names.attributes("a._", SESSION)] == ["a.one", "a._two"]


def test_files_are_written_as_their_folder_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.json").touch()
    (tmp_path / ".hidden").touch()
    (tmp_path / "above").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for folder in ("", "./", "above/../", "~/", f"{tmp_path}/"):
        found = [*session_names.files(f"{folder}a")]
        assert found == [
            Completion(f"{folder}a.json", "file"),
            Completion(f"{folder}above/", "folder"),
        ]
    assert [*session_names.files(".h")] == [Completion(".hidden", "file")]
    assert not [*session_names.files("nowhere/")]
