"""Files that may say what happens here: one's own, that nobody else may have written."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import TextIO


def open_own(path: Path, *, private: bool = False, follow: bool = True) -> TextIO:
    """Open a file for reading if it is this user's, and writable by nobody else.

    With ``private`` it must not be readable by others either, nor have a second name, which
    somebody may have given to another file of this user's; without ``follow`` a symbolic link is
    none. What is checked is what is read: a file that takes its place afterwards is not looked at.
    A pipe, whose writer could keep the reader waiting for ever, is none either.

    Raises:
        PermissionError: it is not such a file; why is its ``strerror``.
        OSError: it cannot be opened.
    """
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0)
    if not follow:
        flags |= getattr(os, "O_NOFOLLOW", 0)
    descriptor = os.open(path, flags)
    reason = _foreign(os.fstat(descriptor), private)
    if reason is not None:
        os.close(descriptor)
        raise PermissionError(0, reason)
    return os.fdopen(descriptor, encoding="utf-8")


def _foreign(found: os.stat_result, private: bool) -> str | None:
    """Why a file is not one's own; None if it is."""
    if not stat.S_ISREG(found.st_mode):
        return "it is no regular file"
    if os.name == "nt":  # has neither; a folder's own list of permissions counts
        return None
    if found.st_uid != os.geteuid():
        return f"it belongs to another user (uid {found.st_uid})"
    if private and found.st_nlink != 1:
        return "it has another name too"
    if found.st_mode & (0o077 if private else 0o022):
        return f"others have access to it (mode {stat.S_IMODE(found.st_mode):04o})"
    return None
