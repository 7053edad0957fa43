"""A snapshot restores every part of a choice, with its effect."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from gpumagic.cuda.this_process import STATE, AutoChoice, Choice
from gpumagic.cuda.visible_devices import MASK, ORDER
from gpumagic.selection import claims, cpu_threads, environment, snapshot, soft_off
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


def is_locked(path: Path) -> bool:
    """Return whether a process has a lock on a file.

    Not by ``/proc/locks``, which may leave out a line while others come and go.
    """
    if not path.exists():
        return False
    with path.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def effects() -> dict[str, Any]:
    """What choices have changed in the process, outside of gpumagic."""
    return {
        "variables": environment.now(),
        "threads": torch.get_num_threads(),
        "auto": STATE.choice.auto and STATE.choice.auto.uuids,
        "claim": [uuid for uuid in UUIDS if is_locked(claims.path_of(uuid))],
        "gated": (
            torch.cuda.is_available.__qualname__,
            torch.overrides._len_torch_function_stack(),
        ),
    }


def known() -> dict[str, Any]:
    """What gpumagic knows of them."""
    return {**vars(STATE.choice), "claim": claims.held(), "gated": soft_off.is_closed()}


#: By part of a choice, how ``%gpu`` changes it.
CHANGES: dict[str, Callable[[], Any]] = {
    "variables": lambda: environment.write({MASK: "-1"}),
    "threads": lambda: cpu_threads.use(THREADS + 1),
    "claim": lambda: claims.hold(UUIDS[:1]),
    "auto": lambda: setattr(STATE.choice, "auto", AutoChoice(UUIDS[:1], None)),
    "gated": lambda: soft_off.close(),
}


def test_every_part_is_tried_here() -> None:
    assert CHANGES.keys() == effects().keys() == known().keys()


@pytest.mark.parametrize("earlier", [(), tuple(CHANGES)], ids=["first", "again"])
@pytest.mark.parametrize("name", CHANGES)
def test_restore_undoes_a_choice(name: str, earlier: tuple[str, ...]) -> None:
    for each in earlier:
        CHANGES[each]()
    outside, before, choice = effects(), known(), snapshot.take()
    others = {
        "variables": lambda: environment.write({MASK: "1", ORDER: None}),
        "claim": lambda: claims.hold(UUIDS[1:]),
        "gated": soft_off.lift if earlier else soft_off.close,
        "auto": lambda: setattr(STATE.choice, "auto", AutoChoice(UUIDS[1:], None)),
    }
    {**CHANGES, **others}[name]()
    assert known()[name] != before[name]
    snapshot.restore(choice)
    assert known() == before
    assert effects() == outside


def test_restore_overwrites_what_the_user_wrote_since() -> None:
    before = snapshot.take()
    os.environ[MASK] = "3"
    del os.environ[ORDER]
    snapshot.restore(before)
    assert environment.now() == {MASK: "0,1", ORDER: "PCI_BUS_ID"}


def test_threads_that_only_the_user_set_stay() -> None:
    before = snapshot.take()
    torch.set_num_threads(THREADS + 2)
    snapshot.restore(before)
    assert torch.get_num_threads() == THREADS + 2
    # Also the number that an earlier choice set is one that the user may have changed since.
    cpu_threads.use(THREADS + 1)
    torch.set_num_threads(THREADS + 2)
    before = snapshot.take()
    cpu_threads.use(THREADS + 1)
    snapshot.restore(before)
    assert torch.get_num_threads() == THREADS + 2
