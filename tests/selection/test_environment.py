"""The variables that choose devices: written, and undone except for the user's later changes."""

from __future__ import annotations

import os

import pytest

from gpumagic.cuda.this_process import STATE, Choice
from gpumagic.cuda.visible_devices import MASK, ORDER
from gpumagic.selection import environment


@pytest.fixture(autouse=True)
def _own_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(STATE, "choice", Choice())
    monkeypatch.setenv(MASK, "0,1")
    monkeypatch.setenv(ORDER, "PCI_BUS_ID")  # so that what a test writes is undone
    monkeypatch.delenv(ORDER)


def test_what_was_before_the_first_choice_comes_back() -> None:
    for value in ("1", "-1", None):
        environment.write({MASK: value})
        assert environment.now() == {MASK: value, ORDER: None}
    environment.write({ORDER: "PCI_BUS_ID"})
    environment.undo()
    assert environment.now() == {MASK: "0,1", ORDER: None}


@pytest.mark.parametrize("users", ["2", None])
@pytest.mark.parametrize("again", [False, True])
def test_what_the_user_wrote_since_stays(users: str | None, again: bool) -> None:
    """Also where another choice follows, which is undone."""
    environment.write({MASK: "1"})
    if users is None:
        del os.environ[MASK]
    else:
        os.environ[MASK] = users
    if again:
        environment.write({MASK: "-1"})
    environment.undo()
    assert environment.now()[MASK] == users


def test_the_start_of_the_process_that_this_one_has_replaced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(STATE, "started_with", {MASK: "7", "HOME": "/h"})
    assert environment.at_process_start() == {MASK: "7", ORDER: None}
    environment.start_from({MASK: None, ORDER: "PCI_BUS_ID"})
    assert environment.at_process_start() == {MASK: None, ORDER: "PCI_BUS_ID"}
    assert STATE.started_with == {"HOME": "/h", ORDER: "PCI_BUS_ID"}
    assert environment.undo() == {MASK: None, ORDER: "PCI_BUS_ID"}
    assert environment.now() == environment.at_process_start()
