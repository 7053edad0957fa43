"""Files that others have written, or may have: none of them says what happens here."""

from __future__ import annotations

import json
import os
import pickle
import threading
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import pytest

from gpumagic.restart import state_file, variables
from gpumagic.selection import saved_choice
from gpumagic.system.trusted_file import open_own
from tests.security.neighbour import UID, act, needs_neighbour, shared_folder

pytestmark = pytest.mark.skipif(os.name == "nt", reason="Windows has no owners and modes")


def test_a_pipe_does_not_hold_up_the_reader(tmp_path: Path) -> None:
    kept = saved_choice.place(str(tmp_path / "kernel-1.json"))
    os.mkfifo(kept, 0o600)
    found: list[Any] = []
    reader = threading.Thread(
        target=lambda: found.append(saved_choice.load(str(tmp_path / "kernel-1.json"))), daemon=True
    )
    reader.start()
    reader.join(30)
    assert found == [None]
    with pytest.raises(PermissionError, match="it is no regular file"):
        open_own(kept)


def test_what_is_kept_must_be_private_and_no_link(tmp_path: Path) -> None:
    connection = str(tmp_path / "kernel-1.json")
    saved_choice.save(connection, "0", {"CUDA_VISIBLE_DEVICES": "GPU-1"})
    kept = saved_choice.place(connection)
    expected = ("0", {"CUDA_VISIBLE_DEVICES": "GPU-1"})
    assert saved_choice.load(connection) == expected
    kept.chmod(0o640)
    assert saved_choice.load(connection) is None
    kept.chmod(0o600)
    os.link(kept, tmp_path / "another")
    assert saved_choice.load(connection) is None
    (tmp_path / "another").unlink()
    kept.rename(tmp_path / "elsewhere")
    kept.symlink_to(tmp_path / "elsewhere")
    assert saved_choice.load(connection) is None
    saved_choice.save(connection, "0", {"CUDA_VISIBLE_DEVICES": "GPU-1"})  # takes the link's place
    assert saved_choice.load(connection) == expected
    kept.write_text("[" * 100_000)
    assert saved_choice.load(connection) is None


@needs_neighbour
def test_what_a_neighbour_left_for_a_kernel(tmp_path: Path) -> None:
    folder = shared_folder(tmp_path)
    connection = str(folder / "kernel-1.json")
    planted = json.dumps({"spec": "off", "variables": {"LD_PRELOAD": "x"}})
    act(
        f"os.umask(0o077)\nopen({str(saved_choice.place(connection))!r}, 'w').write({planted!r})",
        imports="os, codecs",
    )
    assert saved_choice.load(connection) is None


@needs_neighbour
def test_a_foreign_orphan_does_not_hinder_saving(tmp_path: Path) -> None:
    """Seen as an ordinary user, who may not remove what is another's in a sticky folder."""
    folder = shared_folder(tmp_path)
    orphan = saved_choice.place(str(folder / "kernel-gone.json"))
    orphan.touch()
    mine = str(folder / "kernel-2.json")
    act(
        f"saved.save({mine!r}, '0', {{}})\nassert saved.load({mine!r}) == ('0', {{}})",
        imports="codecs, json.decoder, gpumagic.selection.saved_choice as saved",
    )
    assert orphan.exists()


def test_a_name_that_is_nobodys_does_not_hinder_saving(tmp_path: Path) -> None:
    """What is left of it without what we put around a name is no name."""
    for name in ("", "."):
        saved_choice.place(str(tmp_path / "kernel-1.json")).with_name(
            f"gpumagic-{name}.saved"
        ).touch()
    mine = str(tmp_path / "kernel-1.json")
    saved_choice.save(mine, "0", {})
    assert saved_choice.load(mine) == ("0", {})


def test_a_folder_holds_no_descriptor(tmp_path: Path) -> None:
    mine = str(tmp_path / "kernel-1.json")
    saved_choice.place(mine).mkdir()
    before = len(list(Path("/dev/fd").iterdir()))
    for _ in range(5):
        assert saved_choice.load(mine) is None
    assert len(list(Path("/dev/fd").iterdir())) == before


def test_kept_variables_are_loaded_from_a_folder_of_ones_own(tmp_path: Path) -> None:
    """What lies there runs: somebody else may have made it again in /tmp."""
    folder = tmp_path / "kept"
    folder.mkdir(mode=0o700)
    (folder / "variables").write_bytes(b"")
    (tmp_path / "link").symlink_to(folder)
    with pytest.raises(PermissionError, match="not a folder of this user's"):
        variables.load(str(tmp_path / "link"))
    folder.chmod(0o770)
    with pytest.raises(PermissionError, match="not a folder of this user's"):
        variables.load(str(folder))
    folder.chmod(0o700)
    with pytest.raises(OSError, match="Invalid argument"):  # there is nothing in it
        variables.load(str(folder))


@needs_neighbour
def test_a_choice_that_cannot_be_forgotten_is_one_line(tmp_path: Path) -> None:
    folder = shared_folder(tmp_path)
    other = str(folder / "kernel-1.json")
    saved_choice.save(other, "0", {})
    said = act(
        f"try: saved.forget({other!r})\nexcept saved.DeviceError as error: print(error)",
        imports="gpumagic.selection.saved_choice as saved",
    )
    assert said.startswith("the saved choice cannot be removed: ")


class Planted:
    def __reduce__(self) -> Any:
        return (pytest.fail, ("it was unpickled",))


def _take(monkeypatch: pytest.MonkeyPatch, file: IO[bytes], pid: int, inode: int) -> Any:
    """What a process takes that is told of ``file``."""
    file.flush()
    copy = os.dup(file.fileno())
    device = os.fstat(copy).st_dev
    monkeypatch.setenv(state_file.VARIABLE, f"{copy}:{pid}:{device}:{inode}")
    try:
        return state_file.take()
    finally:
        assert state_file.VARIABLE not in os.environ
        with suppress(OSError):  # closed by whoever has taken it
            os.close(copy)


def test_a_restarts_letter_is_ones_own_and_has_no_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever sets the variable leaves nothing: what is taken is unpickled."""
    named = (tmp_path / "named").open("w+b")
    named.write(pickle.dumps(Planted()))
    (tmp_path / "named").chmod(0o600)
    with named, state_file.create() as letter, state_file.create(str(tmp_path)) as on_disk:
        for file in (letter, on_disk):
            pickle.dump({"files": []}, file)
            inode = os.fstat(file.fileno()).st_ino
            assert _take(monkeypatch, file, os.getpid(), inode) == {"files": [], "waiting": []}
            assert state_file.take() is None  # once
        for file in (letter, on_disk):
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
