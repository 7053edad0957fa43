"""`gpumagic.system.trusted_file`: only files that this user alone can have written are opened."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpumagic.system.trusted_file import open_own
from tests.support.other_user import UID, needs_root

pytestmark = pytest.mark.skipif(os.name == "nt", reason="Windows has no owners and modes")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    made = tmp_path / "file"
    made.write_text("text")
    made.chmod(0o600)
    return made


def test_a_private_file_is_opened(file: Path) -> None:
    for private in (False, True):
        with open_own(file, private=private, follow=False) as opened:
            assert opened.read() == "text"


@pytest.mark.parametrize(
    ("mode", "private", "opened"),
    [
        (0o644, False, True),
        (0o644, True, False),
        (0o640, True, False),
        (0o620, False, False),
        (0o602, False, False),
        (0o700, True, True),
    ],
)
def test_modes(file: Path, mode: int, private: bool, opened: bool) -> None:
    file.chmod(mode)
    if opened:
        open_own(file, private=private).close()
        return
    with pytest.raises(PermissionError) as refused:
        open_own(file, private=private)
    assert refused.value.strerror == f"others have access to it (mode {mode:04o})"


def test_links(file: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(file)
    open_own(link).close()
    with pytest.raises(OSError, match=r"[Ss]ymbolic"):
        open_own(link, follow=False)
    os.link(file, tmp_path / "second")
    open_own(file).close()
    with pytest.raises(PermissionError, match="it has another hard link"):
        open_own(file, private=True)


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
