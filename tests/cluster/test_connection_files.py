"""Connection files that others have written, or may have: none chooses where code is sent."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from IPython.core.error import UsageError

from tests.security.neighbour import UID
from tests.support.clusters import Cluster
from tests.support.shells import Ran

pytestmark = pytest.mark.skipif(os.name == "nt", reason="Windows has no owners and modes")
Run = Callable[..., Ran]

#: Connection files in the working folder, each under a name that also means a profile.
_NAMES = ("default", "lab", "~", "lab.jso")


def test_a_word_is_a_profile_whatever_lies_in_the_working_folder(
    two: Cluster, run_cell: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    (tmp_path / "ipython").mkdir()
    monkeypatch.chdir(tmp_path)
    for name in _NAMES:
        (tmp_path / name).write_text(two.file.read_text())
    with pytest.raises(UsageError, match="no cluster runs in profile 'default'"):
        run_cell("%gpu cluster")
    with pytest.raises(UsageError, match="no cluster runs in profile 'default'"):
        run_cell("%gpu cluster default")
    for name in _NAMES[1:]:
        with pytest.raises(UsageError, match=f"there is no profile '{name}'"):
            run_cell(f"%gpu cluster {name}")
    # What is written as a file still is one.
    assert "2 engines on 1 host" in run_cell("%gpu cluster ./lab").text


def test_a_connection_file_that_others_may_have_written(
    two: Cluster, run_cell: Run, tmp_path: Path
) -> None:
    file = tmp_path / "mine.json"
    file.write_text(two.file.read_text())
    for mode in (0o620, 0o602, 0o666):
        file.chmod(mode)
        with pytest.raises(UsageError) as raised:
            run_cell(f"%gpu cluster {file}")
        assert str(raised.value).startswith(
            f"{file} is not used, since others have access to it (mode {mode:04o}): "
        )
    file.chmod(0o644)
    assert "2 engines on 1 host" in run_cell(f"%gpu cluster {file}").text
    if os.geteuid() == 0:
        stranger = tmp_path / "stranger.json"
        stranger.write_text(two.file.read_text())
        os.chown(stranger, UID, UID)
        with pytest.raises(UsageError, match=rf"it belongs to another user \(uid {UID}\)"):
            run_cell(f"%gpu cluster {stranger}")


def test_a_profile_whose_file_is_a_strangers(
    two: Cluster, run_cell: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    folder = tmp_path / "profile_default" / "security"
    folder.mkdir(parents=True)
    file = folder / "ipcontroller-client.json"
    file.write_text(two.file.read_text())
    file.chmod(0o666)
    with pytest.raises(UsageError, match="others have access to it"):
        run_cell("%gpu cluster")


@pytest.mark.parametrize("text", ["[" * 100_000, "[]", "3", '{"a": NaN}', "", "\0", '{"key": []}'])
def test_a_connection_file_that_is_none(run_cell: Run, tmp_path: Path, text: str) -> None:
    (tmp_path / "odd.json").write_text(text)
    with pytest.raises(UsageError, match=r"odd\.json is no connection file of ipyparallel's"):
        run_cell(f"%gpu cluster {tmp_path / 'odd.json'}")


def test_a_profile_whose_file_leads_nowhere(
    run_cell: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    folder = tmp_path / "profile_default" / "security"
    folder.mkdir(parents=True)
    (folder / "ipcontroller-client.json").symlink_to(tmp_path / "nowhere")
    (folder / "ipcontroller-a-client.json").symlink_to(folder / "ipcontroller-a-client.json")
    with pytest.raises(UsageError, match=r"^no cluster runs in profile 'default'; start one with"):
        run_cell("%gpu cluster")
    (folder / "ipcontroller-b-client.json").write_text("[]")
    with pytest.raises(UsageError, match=r"^ipcontroller-b-client\.json is no connection file"):
        run_cell("%gpu cluster")
