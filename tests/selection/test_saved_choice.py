"""The file of a saved choice: only one that this user alone can have written is read."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from gpumagic.selection import saved_choice
from gpumagic.system.trusted_file import open_own
from tests.support.other_user import needs_root, run_as_other_user, shared_folder

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


@needs_root
def test_what_a_neighbour_left_for_a_kernel(tmp_path: Path) -> None:
    folder = shared_folder(tmp_path)
    connection = str(folder / "kernel-1.json")
    planted = json.dumps({"spec": "off", "variables": {"LD_PRELOAD": "x"}})
    run_as_other_user(
        f"os.umask(0o077)\nopen({str(saved_choice.place(connection))!r}, 'w').write({planted!r})",
        imports="os, codecs",
    )
    assert saved_choice.load(connection) is None


@needs_root
def test_a_foreign_orphan_does_not_hinder_saving(tmp_path: Path) -> None:
    """Seen as an ordinary user, who may not remove what is another's in a sticky folder."""
    folder = shared_folder(tmp_path)
    orphan = saved_choice.place(str(folder / "kernel-gone.json"))
    orphan.touch()
    mine = str(folder / "kernel-2.json")
    run_as_other_user(
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


@needs_root
def test_a_choice_that_cannot_be_forgotten_is_one_line(tmp_path: Path) -> None:
    folder = shared_folder(tmp_path)
    other = str(folder / "kernel-1.json")
    saved_choice.save(other, "0", {})
    said = run_as_other_user(
        f"try: saved.forget({other!r})\nexcept saved.DeviceError as error: print(error)",
        imports="gpumagic.selection.saved_choice as saved",
    )
    assert said.startswith("the saved choice cannot be removed: ")
