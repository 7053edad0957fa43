"""A snapshot restores every part of a choice; what the user has written since may stay."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from gpumagic.cuda.this_process import STATE, AutoChoice, Choice
from gpumagic.cuda.visible_devices import MASK, ORDER
from gpumagic.selection import choice_undo, claims, cpu_threads, environment, soft_off
from tests.virtual_gpu import default_uuid

THREADS = torch.get_num_threads()
UUIDS = tuple(default_uuid(index) for index in range(3))


@pytest.fixture(autouse=True)
def _own_choice(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Each test begins without a choice, and leaves none."""
    monkeypatch.setattr(STATE, "choice", Choice())
    for name, value in ((MASK, "0,1"), (ORDER, "PCI_BUS_ID")):
        monkeypatch.setenv(name, value)
    yield
    soft_off.lift()
    claims.release()
    torch.set_num_threads(THREADS)


def parts() -> dict[str, Any]:
    """What choices have changed in the process."""
    torchs = torch.cuda.is_available.__qualname__, torch.overrides._len_torch_function_stack()
    return {
        "variables": (environment.now(), STATE.choice.variables),
        "threads": (torch.get_num_threads(), STATE.choice.threads),
        "auto": STATE.choice.auto,
        "claim": claims.held(),
        "gated": (soft_off.is_closed(), torchs),
    }


#: By part of a choice, how ``%gpu`` changes it.
CHANGES: dict[str, Callable[[], Any]] = {
    "variables": lambda: environment.write({MASK: "-1"}),
    "threads": lambda: cpu_threads.use(THREADS + 1),
    "claim": lambda: claims.hold(UUIDS[:1]),
    "auto": lambda: setattr(STATE.choice, "auto", AutoChoice(UUIDS[:1], None)),
    "gated": lambda: soft_off.close(),
}


def test_every_part_is_tried_here() -> None:
    assert CHANGES.keys() == parts().keys() == {"claim", "gated", *vars(STATE.choice)}


@pytest.mark.parametrize("earlier", [(), tuple(CHANGES)], ids=["first", "again"])
@pytest.mark.parametrize("name", CHANGES)
def test_restore_undoes_a_choice(name: str, earlier: tuple[str, ...]) -> None:
    for each in earlier:
        CHANGES[each]()
    before, choice = parts(), choice_undo.take()
    others = {
        "variables": lambda: environment.write({MASK: "1", ORDER: None}),
        "claim": lambda: claims.hold(UUIDS[1:]),
        "gated": soft_off.lift if earlier else soft_off.close,
        "auto": lambda: setattr(STATE.choice, "auto", AutoChoice(UUIDS[1:], None)),
    }
    {**CHANGES, **others}[name]()
    assert parts()[name] != before[name]
    choice_undo.restore(choice)
    assert parts() == before


def test_restore_overwrites_what_the_user_wrote_since() -> None:
    before = choice_undo.take()
    os.environ[MASK] = "3"
    del os.environ[ORDER]
    choice_undo.restore(before)
    assert environment.now() == {MASK: "0,1", ORDER: "PCI_BUS_ID"}


@pytest.mark.parametrize("users", ["2", None])
@pytest.mark.parametrize("again", [False, True])
def test_what_the_user_wrote_since_stays_where_choices_are_undone(
    users: str | None, again: bool
) -> None:
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


def test_threads_that_only_the_user_set_stay() -> None:
    before = choice_undo.take()
    torch.set_num_threads(THREADS + 2)
    choice_undo.restore(before)
    assert torch.get_num_threads() == THREADS + 2
    # Also the number that an earlier choice set is one that the user may have changed since.
    cpu_threads.use(THREADS + 1)
    torch.set_num_threads(THREADS + 2)
    before = choice_undo.take()
    cpu_threads.use(THREADS + 1)
    choice_undo.restore(before)
    assert torch.get_num_threads() == THREADS + 2
