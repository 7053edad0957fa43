"""Prompt numbers, inputs and folders continue in another shell."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gpumagic.restart import execution_count
from tests.support.shells import shell


@pytest.mark.parametrize("counted", [True, False])
def test_another_shell_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, counted: bool
) -> None:
    captured: list[dict[str, Any]] = []
    monkeypatch.chdir(tmp_path)
    with shell(load=False) as old:
        old.user_ns["capture"] = lambda: captured.append(execution_count.capture(old))
        old.run_cell("1", store_history=True)
        old.run_cell("2", store_history=True)
        old.run_cell("capture()", store_history=counted)
    (state,) = captured
    monkeypatch.chdir("/")
    with shell(load=False) as new:
        execution_count.restore(new, state)
        execution_count.finish(new, state, counted=counted)
        assert new.execution_count == (4 if counted else 3)
        assert new.user_ns["In"] == ["", "1", "2", *["capture()"] * counted]
        assert new.user_ns["_i1"] == "1"
        assert Path.cwd() == tmp_path
        new.run_cell("3", store_history=True)
        assert new.user_ns["In"][-1] == "3"


def test_a_folder_that_was_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gone").mkdir()
    with shell(load=False) as ip:
        monkeypatch.chdir(tmp_path / "gone")
        (tmp_path / "gone").rmdir()
        state = execution_count.capture(ip)
        assert state["folder"] is None
        monkeypatch.chdir(tmp_path)
        execution_count.restore(ip, state)
        execution_count.restore(ip, {**state, "folder": str(tmp_path / "gone")})
        assert Path.cwd() == tmp_path
