"""Files that others have written, or may have: none of them says what happens here."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from gpumagic import keep, saved
from gpumagic.own_file import open_own
from tests.security.neighbour import act, needs_neighbour, shared_folder

pytestmark = pytest.mark.skipif(os.name == "nt", reason="Windows has no owners and modes")


def test_a_pipe_does_not_hold_up_the_reader(tmp_path: Path) -> None:
    kept = saved.place(str(tmp_path / "kernel-1.json"))
    os.mkfifo(kept, 0o600)
    found: list[Any] = []
    reader = threading.Thread(
        target=lambda: found.append(saved.load(str(tmp_path / "kernel-1.json"))), daemon=True
    )
    reader.start()
    reader.join(30)
    assert found == [None]
    with pytest.raises(PermissionError, match="it is no regular file"):
        open_own(kept)


def test_what_is_kept_must_be_private_and_no_link(tmp_path: Path) -> None:
    connection = str(tmp_path / "kernel-1.json")
    saved.save(connection, "0", {"CUDA_VISIBLE_DEVICES": "GPU-1"})
    kept = saved.place(connection)
    expected = ("0", {"CUDA_VISIBLE_DEVICES": "GPU-1"})
    assert saved.load(connection) == expected
    kept.chmod(0o640)
    assert saved.load(connection) is None
    kept.chmod(0o600)
    os.link(kept, tmp_path / "another")
    assert saved.load(connection) is None
    (tmp_path / "another").unlink()
    kept.rename(tmp_path / "elsewhere")
    kept.symlink_to(tmp_path / "elsewhere")
    assert saved.load(connection) is None
    saved.save(connection, "0", {"CUDA_VISIBLE_DEVICES": "GPU-1"})  # takes the link's place
    assert saved.load(connection) == expected
    kept.write_text("[" * 100_000)
    assert saved.load(connection) is None


@needs_neighbour
def test_what_a_neighbour_left_for_a_kernel(tmp_path: Path) -> None:
    folder = shared_folder(tmp_path)
    connection = str(folder / "kernel-1.json")
    planted = json.dumps({"spec": "off", "variables": {"LD_PRELOAD": "x"}})
    act(
        f"os.umask(0o077)\nopen({str(saved.place(connection))!r}, 'w').write({planted!r})",
        imports="os, codecs",
    )
    assert saved.load(connection) is None


@needs_neighbour
def test_a_foreign_orphan_does_not_hinder_saving(tmp_path: Path) -> None:
    """Seen as an ordinary user, who may not remove what is another's in a sticky folder."""
    folder = shared_folder(tmp_path)
    orphan = saved.place(str(folder / "kernel-gone.json"))
    orphan.touch()
    mine = str(folder / "kernel-2.json")
    act(
        f"saved.save({mine!r}, '0', {{}})\nassert saved.load({mine!r}) == ('0', {{}})",
        imports="codecs, json.decoder, gpumagic.saved as saved",
    )
    assert orphan.exists()


def test_a_name_that_is_nobodys_does_not_hinder_saving(tmp_path: Path) -> None:
    """What is left of it without what we put around a name is no name."""
    for name in ("", "."):
        saved.place(str(tmp_path / "kernel-1.json")).with_name(f"gpumagic-{name}.saved").touch()
    mine = str(tmp_path / "kernel-1.json")
    saved.save(mine, "0", {})
    assert saved.load(mine) == ("0", {})


def test_a_folder_holds_no_descriptor(tmp_path: Path) -> None:
    mine = str(tmp_path / "kernel-1.json")
    saved.place(mine).mkdir()
    before = len(list(Path("/dev/fd").iterdir()))
    for _ in range(5):
        assert saved.load(mine) is None
    assert len(list(Path("/dev/fd").iterdir())) == before


def test_kept_variables_are_loaded_from_a_folder_of_ones_own(tmp_path: Path) -> None:
    """What lies there runs: somebody else may have made it again in /tmp."""
    folder = tmp_path / "kept"
    folder.mkdir(mode=0o700)
    (folder / "variables").write_bytes(b"")
    (tmp_path / "link").symlink_to(folder)
    with pytest.raises(PermissionError, match="not a folder of this user's"):
        keep.load(str(tmp_path / "link"))
    folder.chmod(0o770)
    with pytest.raises(PermissionError, match="not a folder of this user's"):
        keep.load(str(folder))
    folder.chmod(0o700)
    with pytest.raises(OSError, match="Invalid argument"):  # there is nothing in it
        keep.load(str(folder))


@needs_neighbour
def test_a_choice_that_cannot_be_forgotten_is_one_line(tmp_path: Path) -> None:
    folder = shared_folder(tmp_path)
    other = str(folder / "kernel-1.json")
    saved.save(other, "0", {})
    said = act(
        f"try: saved.forget({other!r})\nexcept saved.DeviceError as error: print(error)",
        imports="gpumagic.saved as saved",
    )
    assert said.startswith("the saved choice cannot be removed: ")
