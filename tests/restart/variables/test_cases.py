"""What people have in their notebooks, kept: all of it comes back, or is said not to."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.restart.variables import runner
from tests.restart.variables.cases import CASES, Case


@pytest.fixture(scope="module")
def results(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    """Every case that is to run, kept and brought back."""
    wanted = [item.callspec.params["case"].name for item in request.session.items
              if getattr(item, "module", None) is request.module]  # fmt: skip
    folder: Path = tmp_path_factory.mktemp("kept")
    runner.run_all(folder, wanted)
    return {path.stem: json.loads(path.read_text()) for path in folder.glob("*.json")}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_nothing_is_lost_silently(case: Case, results: dict[str, Any]) -> None:
    found = results[case.name]
    assert "error" not in found, found["error"]
    assert found["wrong"] == []
    assert found["without"] == {name: sorted(what) for name, what in case.without.items()}
    assert found["failures"].keys() == case.failures.keys()
    for name, reason in case.failures.items():
        assert reason in found["failures"][name]
