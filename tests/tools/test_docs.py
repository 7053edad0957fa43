"""README.md and the reference of the magics agree with the code."""

from __future__ import annotations

import re

import pytest

from tests.tools.docs.reference import PAGE, README, ROOT, page


def test_the_reference_is_up_to_date() -> None:
    """If this fails: ``make docs``."""
    assert PAGE.read_text(encoding="utf-8") == page()


def test_the_help_is_the_same_in_every_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """And, by the test above, on every Python: argparse's own wording differs from 3.13 on."""
    before = page()
    for name, value in (("COLUMNS", "40"), ("TERM", "dumb"), ("FORCE_COLOR", "1")):
        monkeypatch.setenv(name, value)
    assert page() == before


def test_every_setting_is_in_it() -> None:
    assert "| `claim` | `True` | Claim the chosen GPUs" in page()
    assert "| `quiet` | `False` | Print nothing" in page()


def test_readmes_links_and_pictures_exist() -> None:
    text = README.read_text(encoding="utf-8")
    local = [
        *re.findall(r"\]\((?!https?://|#)([^)#]+)", text),
        *re.findall(r'(?:src|srcset)="(?!https?://)([^"]+)"', text),
    ]
    assert local
    for target in local:
        assert (ROOT / target).exists(), target


def test_readmes_options_exist() -> None:
    """Each option that README names is one of a magic's, or of a command shown beside it."""
    text = README.read_text(encoding="utf-8")
    known = set(re.findall(r"(?<![\w-])--?[a-z][a-z-]*", page()))
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", re.sub(r"<!--|-->", "", text)))
    assert len(named) > 8
    assert named <= known | {"--hardware"}  # the last one is for pytest tests/hardware
