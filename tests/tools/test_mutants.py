"""The seeded defects, on trees that are made up here."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tools import mutants
from tests.tools.mutants import MUTANTS, Mutant

HALF = Mutant("half.py", "number / 2", "number // 2", ("test_half.py",))


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "half.py").write_text("def half(number):\n    return number / 2\n")
    (tmp_path / "test_half.py").write_text(
        "from half import half\n\ndef test_half():\n    assert half(3) == 1.5\n"
    )
    (tmp_path / "test_even.py").write_text(
        "from half import half\n\ndef test_half():\n    assert half(4) == 2\n"
    )
    return tmp_path


def test_the_list_of_defects_is_that_of_these_files() -> None:
    assert mutants.stale(MUTANTS) == []
    assert len(MUTANTS) >= 20
    assert len(set(MUTANTS)) == len(MUTANTS)


def test_a_defect_whose_text_has_changed_is_refused(tree: Path) -> None:
    assert mutants.stale([HALF], tree) == []
    gone = HALF._replace(old="number * 2")
    twice = HALF._replace(old="number")
    untested = HALF._replace(tests=("test_none.py::test",))
    assert mutants.stale([gone, twice, untested], tree) == [
        "half.py: 0 times, not once: number * 2",
        "half.py: 2 times, not once: number",
        "half.py: there is no test_none.py::test",
    ]


def test_a_defect_is_killed_or_survives_and_is_put_back(tree: Path) -> None:
    unnoticed = HALF._replace(tests=("test_even.py",))
    assert [killed for _, killed in mutants.run([HALF, unnoticed], tree)] == [True, False]
    assert "number / 2" in (tree / "half.py").read_text()


def test_tests_that_fail_anyway_tell_nothing(
    tree: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tree / "test_red.py").write_text("def test_red():\n    assert False\n")
    red = HALF._replace(tests=("test_red.py",))
    monkeypatch.setattr(mutants, "MUTANTS", (HALF, red))
    monkeypatch.setattr(mutants, "stale", lambda listed: [])
    monkeypatch.setattr(mutants, "copy", lambda: tree)
    assert mutants.main(()) == 2
    assert capsys.readouterr().out.splitlines() == [
        "without any defect test_red.py fails: nothing can be told by it",
        "killed    half.py: number / 2  →  number // 2",
        "2 defects: 0 survived, 1 not tried",
    ]
    assert mutants.main(("no such word",)) == 0


def test_tests_that_cannot_be_run_are_no_proof(tree: Path) -> None:
    with pytest.raises(RuntimeError, match="pytest ended with"):
        mutants.passes(tree, ["test_half.py::test_none"])
