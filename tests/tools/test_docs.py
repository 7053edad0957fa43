"""The reference of the magics agrees with the code."""

from __future__ import annotations

import pytest

from tests.tools.docs.reference import PAGE, page


def test_the_reference_is_up_to_date() -> None:
    """If this fails: ``make docs``."""
    assert PAGE.read_text(encoding="utf-8") == page()


def test_the_help_is_the_same_in_every_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """And, by the test above, on every Python: argparse's own wording differs from 3.13 on."""
    before = page()
    for name, value in (("COLUMNS", "40"), ("TERM", "dumb"), ("FORCE_COLOR", "1")):
        monkeypatch.setenv(name, value)
    assert page() == before
