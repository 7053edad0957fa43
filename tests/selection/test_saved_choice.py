"""A choice saved in the folder of the connection file, in a file of this user alone."""

from __future__ import annotations

import json
import os
import stat
import threading
from pathlib import Path
from typing import Any

import pytest

from gpumagic.cuda.visible_devices import MASK, ORDER
from gpumagic.errors import DeviceError
from gpumagic.selection import saved_choice
from gpumagic.system.trusted_file import open_own
from tests.support.other_user import needs_root, run_as_other_user

pytestmark = pytest.mark.skipif(os.name == "nt", reason="Windows has no owners and modes")


@pytest.fixture
def connection(tmp_path: Path) -> str:
    path = tmp_path / "kernel-1.json"
    path.touch()
    return str(path)


def test_a_choice_is_saved_replaced_and_forgotten(connection: str) -> None:
    assert saved_choice.load(connection) is None
    for spec, mask in (("off", "-1"), ("0", "GPU-aa"), ("on", None)):
        variables = {MASK: mask, ORDER: None}
        saved_choice.save(connection, spec, variables)
        assert saved_choice.load(connection) == (spec, variables)
    assert stat.S_IMODE(saved_choice.file_of(connection).stat().st_mode) == 0o600
    for _ in range(2):
        saved_choice.forget(connection)
        assert saved_choice.load(connection) is None


@pytest.mark.parametrize(
    "content",
    [
        *("", "no JSON", "[]", "{}", "3", '{"spec": "off"}', '{"variables": 3}'),
        *('{"spec": "off", "variables": []}', "[" * 100_000),
    ],
    ids=lambda content: content[:20],
)
def test_what_is_not_a_saved_choice_is_none(connection: str, content: str) -> None:
    saved_choice.save(connection, "off", {})
    saved_choice.file_of(connection).write_text(content)
    assert saved_choice.load(connection) is None


def test_saving_removes_choices_of_kernels_without_a_connection_file(connection: str) -> None:
    other = Path(connection).with_name("kernel-2.json")
    for exists in (True, False):
        if exists:
            other.touch()
        saved_choice.save(str(other), "off", {})
        saved_choice.save(connection, "on", {})
        assert (saved_choice.load(str(other)) is not None) is exists
        other.unlink(missing_ok=True)
        other_file = saved_choice.file_of(str(other))
        other_file.write_text(json.dumps({"spec": "off", "variables": {}}))
    saved_choice.save(connection, "on", {})
    assert not saved_choice.file_of(str(other)).exists()


def test_a_folder_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(DeviceError, match="the choice cannot be saved: ") as caught:
        saved_choice.save(str(tmp_path / "none" / "kernel.json"), "off", {})
    assert "\n" not in str(caught.value)


def test_a_pipe_does_not_hold_up_the_reader(tmp_path: Path) -> None:
    saved = saved_choice.file_of(str(tmp_path / "kernel-1.json"))
    os.mkfifo(saved, 0o600)
    found: list[Any] = []
    reader = threading.Thread(
        target=lambda: found.append(saved_choice.load(str(tmp_path / "kernel-1.json"))), daemon=True
    )
    reader.start()
    reader.join(300)
    assert found == [None]
    with pytest.raises(PermissionError, match="it is no regular file"):
        open_own(saved)


def test_a_saved_choice_must_be_private_and_no_link(tmp_path: Path) -> None:
    connection = str(tmp_path / "kernel-1.json")
    saved_choice.save(connection, "0", {"CUDA_VISIBLE_DEVICES": "GPU-1"})
    saved = saved_choice.file_of(connection)
    expected = ("0", {"CUDA_VISIBLE_DEVICES": "GPU-1"})
    assert saved_choice.load(connection) == expected
    saved.chmod(0o640)
    assert saved_choice.load(connection) is None
    saved.chmod(0o600)
    os.link(saved, tmp_path / "another")
    assert saved_choice.load(connection) is None
    (tmp_path / "another").unlink()
    saved.rename(tmp_path / "elsewhere")
    saved.symlink_to(tmp_path / "elsewhere")
    assert saved_choice.load(connection) is None
    saved_choice.save(connection, "0", {"CUDA_VISIBLE_DEVICES": "GPU-1"})  # takes the link's place
    assert saved_choice.load(connection) == expected
    saved.write_text("[" * 100_000)
    assert saved_choice.load(connection) is None


@needs_root
def test_a_file_of_another_user_is_not_read(shared_folder: Path) -> None:
    connection = str(shared_folder / "kernel-1.json")
    planted = json.dumps({"spec": "off", "variables": {"LD_PRELOAD": "x"}})
    run_as_other_user(
        f"os.umask(0o077)\nopen({str(saved_choice.file_of(connection))!r}, 'w').write({planted!r})",
        imports="os, codecs",
    )
    assert saved_choice.load(connection) is None


@needs_root
def test_an_old_file_of_another_user_does_not_hinder_saving(shared_folder: Path) -> None:
    """As an ordinary user, who may not remove another user's file in a sticky folder."""
    orphan = saved_choice.file_of(str(shared_folder / "kernel-gone.json"))
    orphan.touch()
    mine = str(shared_folder / "kernel-2.json")
    run_as_other_user(
        f"saved.save({mine!r}, '0', {{}})\nassert saved.load({mine!r}) == ('0', {{}})",
        imports="codecs, json.decoder, gpumagic.selection.saved_choice as saved",
    )
    assert orphan.exists()


def test_a_file_without_a_kernels_name_does_not_hinder_saving(tmp_path: Path) -> None:
    """Without prefix and suffix its name is empty."""
    for name in ("", "."):
        saved_choice.file_of(str(tmp_path / "kernel-1.json")).with_name(
            f"gpumagic-{name}.saved"
        ).touch()
    mine = str(tmp_path / "kernel-1.json")
    saved_choice.save(mine, "0", {})
    assert saved_choice.load(mine) == ("0", {})


def test_a_folder_leaves_no_descriptor_open(tmp_path: Path) -> None:
    mine = str(tmp_path / "kernel-1.json")
    saved_choice.file_of(mine).mkdir()
    before = len(list(Path("/dev/fd").iterdir()))
    for _ in range(5):
        assert saved_choice.load(mine) is None
    assert len(list(Path("/dev/fd").iterdir())) == before


@needs_root
def test_a_file_that_cannot_be_removed_is_one_line(shared_folder: Path) -> None:
    other = str(shared_folder / "kernel-1.json")
    saved_choice.save(other, "0", {})
    output = run_as_other_user(
        f"try: saved.forget({other!r})\nexcept saved.DeviceError as error: print(error)",
        imports="gpumagic.selection.saved_choice as saved",
    )
    assert output.startswith("the saved choice cannot be removed: ")
