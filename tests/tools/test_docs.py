"""README.md agrees with the code."""

from __future__ import annotations

import argparse
import re
from importlib import import_module

import pytest

from tests.tools.docs.reference import MAGICS, README, ROOT, reference, updated


def test_the_reference_is_up_to_date() -> None:
    """If this fails: ``make docs``."""
    text = README.read_text(encoding="utf-8")
    assert updated(text) == text


def test_the_help_is_the_same_in_every_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """And, by the test above, on every Python: argparse's own wording differs from 3.13 on."""
    before = reference()
    for name, value in (("COLUMNS", "40"), ("TERM", "dumb"), ("FORCE_COLOR", "1")):
        monkeypatch.setenv(name, value)
    assert reference() == before


@pytest.mark.parametrize("magic", MAGICS)
def test_every_option_is_in_it(magic: str) -> None:
    parser = import_module(f"gpumagic.magics.{magic}.command").parser()
    section = reference().split(f"### `%{magic}`")[1].split("### ")[0]
    for action in parser._actions:
        if action.help == argparse.SUPPRESS:
            continue
        assert action.help, f"{action.option_strings or action.dest} of %{magic} has no help"
        for option in action.option_strings:
            assert re.search(rf"(?<![\w-]){re.escape(option)}(?![\w-])", section), option


def test_its_links_and_pictures_exist() -> None:
    text = README.read_text(encoding="utf-8")
    local = [
        *re.findall(r"\]\((?!https?://|#)([^)#]+)", text),
        *re.findall(r'(?:src|srcset)="(?!https?://)([^"]+)"', text),
    ]
    assert local
    for target in local:
        assert (ROOT / target).exists(), target
