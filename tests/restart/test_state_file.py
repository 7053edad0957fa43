"""The file in which a restart passes its state: no other file is read."""

from __future__ import annotations

import os
import pickle
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import pytest

from gpumagic.restart import state_file
from tests.support.other_user import UID

pytestmark = pytest.mark.skipif(os.name == "nt", reason="Windows has no owners and modes")


class Planted:
    def __reduce__(self) -> Any:
        return (pytest.fail, ("it was unpickled",))


def _take(monkeypatch: pytest.MonkeyPatch, file: IO[bytes], pid: int, inode: int) -> Any:
    """Read the state where the variable names ``file``."""
    file.flush()
    copy = os.dup(file.fileno())
    device = os.fstat(copy).st_dev
    monkeypatch.setenv(state_file.VARIABLE, f"{copy}:{pid}:{device}:{inode}")
    try:
        return state_file.take()
    finally:
        assert state_file.VARIABLE not in os.environ
        with suppress(OSError):  # closed by `take`
            os.close(copy)


def test_only_an_unnamed_file_of_this_process_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is read is unpickled: setting the variable must not be enough."""
    named = (tmp_path / "named").open("w+b")
    named.write(pickle.dumps(Planted()))
    (tmp_path / "named").chmod(0o600)
    with named, state_file.create() as in_memory, state_file.create(str(tmp_path)) as on_disk:
        for file in (in_memory, on_disk):
            pickle.dump({"files": []}, file)
            inode = os.fstat(file.fileno()).st_ino
            taken = _take(monkeypatch, file, os.getpid(), inode)
            assert taken == {"files": [], "pending_requests": []}
            assert state_file.take() is None  # once
        for file in (in_memory, on_disk):
            inode = os.fstat(file.fileno()).st_ino
            file.seek(0)
            file.write(pickle.dumps(Planted()))
            assert _take(monkeypatch, file, os.getpid() + 1, inode) is None
            assert _take(monkeypatch, file, os.getpid(), inode + 1) is None
            os.fchmod(file.fileno(), 0o640)
            assert _take(monkeypatch, file, os.getpid(), inode) is None
            os.fchmod(file.fileno(), 0o600)
        inode = os.fstat(named.fileno()).st_ino
        assert _take(monkeypatch, named, os.getpid(), inode) is None
        if os.geteuid() == 0:
            os.fchown(on_disk.fileno(), UID, UID)
            inode = os.fstat(on_disk.fileno()).st_ino
            assert _take(monkeypatch, on_disk, os.getpid(), inode) is None
    for words in ("", "1", "a:b:c:d", f"999:{os.getpid()}:1:1", ":::"):
        monkeypatch.setenv(state_file.VARIABLE, words)
        assert state_file.take() is None


def test_a_file_that_keeps_its_name_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on NFS: `take` would not read it."""

    def named(**_: Any) -> Any:
        (file := tmp_path / ".nfs0001").touch(mode=0o600)
        return file.open("w+b")

    monkeypatch.setattr(state_file.tempfile, "TemporaryFile", named)
    with pytest.raises(OSError, match="set TMPDIR"):
        state_file.create(str(tmp_path))
