"""What another user does to the file whose lock is a claim."""

from __future__ import annotations

import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpumagic.selection import claims
from tests.support.other_user import BECOME, needs_root, run_as_other_user

#: In a process of its own: where CUDA has started already, a choice claims nothing.
pytestmark = [needs_root, pytest.mark.own_process]

_LOCK = f"""
import fcntl, sys
file = open(sys.argv[1], "rb")
{BECOME}
fcntl.flock(file, fcntl.LOCK_EX)
print("locked", flush=True)
input()
"""


@pytest.mark.parametrize("attack", ["lock", "link"])
def test_a_claim_that_does_not_hold_says_why(
    run_cell: Callable[..., Any],
    shared_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    attack: str,
) -> None:
    """And the GPU is chosen all the same."""
    monkeypatch.setattr(claims, "path_of", lambda uuid: shared_folder / uuid)
    uuid = run_cell("%gpu -o -q").value[1].uuid
    file, holder = shared_folder / uuid, None
    if attack == "link":
        run_as_other_user(f"os.symlink('/etc/passwd', {str(file)!r})")
    else:
        file.touch()
        words = [sys.executable, "-c", _LOCK, str(file)]
        holder = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"locked\n"
    try:
        chosen = run_cell("%gpu 1 -o -q").value
        assert [device.uuid for device in chosen.devices] == [uuid]
        note = chosen.notes[-1]
        assert note.startswith("GPU 1 is not claimed, so another notebook may choose it, too: ")
        assert str(file) in note
        assert ("is a link" in note) == (attack == "link")
        assert ("shares it with nobody" in note) == (attack == "lock")
    finally:
        run_cell("%gpu on -q")
        if holder is not None:
            holder.communicate(b"\n")


def test_the_number_of_locks_costs_nothing(
    run_cell: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of anyone, on any files: reading 50,000 takes seconds, and longer with each."""
    locks = tmp_path / "locks"
    line = "1: POSIX  ADVISORY  WRITE 1 00:01:1 0 0\n"
    locks.write_text(Path("/proc/locks").read_text() + line * 300_000)
    monkeypatch.setattr(claims, "_LOCKS", str(locks))
    tracemalloc.start()
    try:
        assert run_cell("%gpu auto -o -q").value.devices
        assert tracemalloc.get_traced_memory()[1] < 2**23
    finally:
        tracemalloc.stop()
        run_cell("%gpu on -q")
