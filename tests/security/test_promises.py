"""Each promise of ``docs/security.md`` has a test of its name in this folder."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

_HERE = Path(__file__).parent
_PAGE = (_HERE.parents[1] / "docs/security.md").read_text(encoding="utf-8")
PROMISES = [" ".join(each.split()) for each in re.findall(r"^- \*\*(.+?)\*\*", _PAGE, re.M | re.S)]
_TESTS = "\n".join(file.read_text(encoding="utf-8") for file in _HERE.glob("test_*.py"))


def test_there_are_promises() -> None:
    assert len(PROMISES) > 15


@pytest.mark.parametrize("promise", PROMISES)
def test_it_has_a_test(promise: str) -> None:
    name = re.sub(r"\W+", "_", promise.lower().replace("'", ""))
    assert f"def test_{name}(" in _TESTS
