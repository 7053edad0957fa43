"""Open files that only this user can write."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import TextIO


def open_own(path: Path, *, private: bool = False, follow: bool = True) -> TextIO:
    """Open a regular file for reading that this user owns and no other user can write.

    With ``private`` no other user may read it either, and it must have no second hard link, which
    another user can create to any file of this user. Without ``follow`` it must be no symbolic
    link. The open file is checked, not its path, so that a file that replaces it is not read. A
    pipe is refused: opening or reading it could block.

    Raises:
        PermissionError: it is not such a file; ``strerror`` has the reason.
        OSError: the file cannot be opened.
    """
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0)
    if not follow:
        flags |= getattr(os, "O_NOFOLLOW", 0)
    descriptor = os.open(path, flags)
    reason = _refusal(os.fstat(descriptor), private)
    if reason is not None:
        os.close(descriptor)
        raise PermissionError(0, reason)
    return os.fdopen(descriptor, encoding="utf-8")


def _refusal(found: os.stat_result, private: bool) -> str | None:
    """Return the reason not to trust a file; None if there is none."""
    if not stat.S_ISREG(found.st_mode):
        return "it is no regular file"
    if os.name == "nt":  # has neither owner nor mode here: the folder's permissions protect it
        return None
    if found.st_uid != os.geteuid():
        return f"it belongs to another user (uid {found.st_uid})"
    if private and found.st_nlink != 1:
        return "it has another hard link"
    if found.st_mode & (0o077 if private else 0o022):
        return f"others have access to it (mode {stat.S_IMODE(found.st_mode):04o})"
    return None
