"""Check the paths that a user has typed."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import TextIO

from gpumagic.errors import SpecError
from gpumagic.system.text import harmless


def user_path(text: str | Path) -> Path:
    """Return the path that a user has typed, with ``~`` expanded; it need not exist.

    Raises:
        SpecError: the path is not valid, or may not be accessed.
    """
    try:
        path = Path(text).expanduser()
        with suppress(FileNotFoundError, NotADirectoryError):
            path.stat()
    except RuntimeError:  # of expanduser
        start = shown(Path(text).parts[0])
        raise SpecError(f"{shown(text)}: no home folder is known for {start}") from None
    except OSError as error:
        raise SpecError(f"{shown(text)}: {error.strerror or 'no such path'}") from None
    except ValueError:
        raise SpecError(f"{shown(text)}: no path has such characters") from None
    return path


def opened(text: str | Path) -> TextIO:
    """Open a regular file for reading, as UTF-8, without waiting.

    Raises:
        SpecError: the path is not valid, or no regular file.
        OSError: it cannot be opened.
    """
    path = user_path(text)

    def opener(name: str, flags: int) -> int:
        # Opening a pipe, or a file of which another process has a lease, would wait.
        descriptor = os.open(name, flags | getattr(os, "O_NONBLOCK", 0))
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            return descriptor
        os.close(descriptor)
        raise SpecError(f"{shown(text)} is no regular file")

    return open(path, encoding="utf-8-sig", opener=opener)


def is_another_user(uid: int) -> bool:
    """Return whether a user is neither this one nor the system: root, and who owns ``/``.

    In a container where only the user is known that is "nobody", as are all other users.
    """
    return uid not in (0, os.geteuid(), Path("/").stat().st_uid)


def of_another_user(path: Path) -> bool:
    """Return whether another user, but the system's, has made the file or the link at a path."""
    with suppress(OSError):
        return hasattr(os, "geteuid") and is_another_user(path.lstat().st_uid)
    return False


def shown(text: str | Path) -> str:
    """Return a path as a message names it."""
    return harmless(str(text), 200)
