"""`gpumagic.system.paths.open_own`: only files that this user alone can have written are opened."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpumagic.system.paths import open_own
from tests.support.other_user import UID, needs_root

pytestmark = pytest.mark.skipif(os.name == "nt", reason="Windows has no owners and modes")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    made = tmp_path / "file"
    made.write_text("text")
    made.chmod(0o600)
    return made


@pytest.mark.parametrize(
    ("mode", "opened"), [(0o600, True), (0o644, True), (0o620, False), (0o602, False)]
)
def test_modes(file: Path, tmp_path: Path, mode: int, opened: bool) -> None:
    file.chmod(mode)
    link = tmp_path / "link"
    link.symlink_to(file)
    if opened:
        with open_own(link) as found:
            assert found.read() == "text"
        return
    with pytest.raises(PermissionError) as refused:
        open_own(file)
    assert refused.value.strerror == f"others have access to it (mode {mode:04o})"


def test_what_is_no_regular_file(tmp_path: Path) -> None:
    """A pipe without a writer: opening it must not wait."""
    os.mkfifo(tmp_path / "pipe", 0o600)
    for path in (tmp_path / "pipe", tmp_path):
        with pytest.raises(PermissionError, match="it is no regular file"):
            open_own(path)
    with pytest.raises(FileNotFoundError):
        open_own(tmp_path / "missing")


def test_a_refused_file_is_closed(tmp_path: Path) -> None:
    before = len(os.listdir("/dev/fd"))  # noqa: PTH208
    for _ in range(5):
        with pytest.raises(PermissionError):
            open_own(tmp_path)
    assert len(os.listdir("/dev/fd")) == before  # noqa: PTH208


@needs_root
def test_the_file_of_another_user(file: Path) -> None:
    os.chown(file, UID, UID)
    with pytest.raises(PermissionError, match=rf"it belongs to another user \(uid {UID}\)"):
        open_own(file)
