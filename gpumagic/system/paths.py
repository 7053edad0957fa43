"""Check the paths that a user has typed."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import TextIO

from gpumagic.errors import SpecError
from gpumagic.system.text import harmless

#: Permission to write, of the owner, the group or others.
_ANY_WRITE = stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH


def working_folder() -> str | None:
    """Return the working folder; None if it was removed."""
    try:
        return str(Path.cwd())
    except OSError:
        return None


def user_path(text: str | Path) -> Path:
    """Return the path that a user has typed, with ``~`` expanded; it need not exist.

    Raises:
        SpecError: the path is not valid, or may not be accessed.
    """
    return _with_status(text)[0]


def output_path(text: str | Path) -> Path:
    """Return the absolute path of a file to be written, new or replacing a regular file.

    Of a link it is the path that the link leads to. Opening a pipe would wait for its reader. Code
    that runs before the file is written may change the working folder.

    Raises:
        SpecError: the path is no regular file, its folder does not exist, one of the two may not
            be written, or another user has made the link, or one that it leads to.
    """

    def refused(why: str) -> SpecError:
        return SpecError(f"cannot write {shown(text)}: {why}")

    if not str(text):
        raise SpecError("cannot write '': that is no name of a file")
    path, found = _with_status(text)
    try:
        while path.is_symlink():
            if not _is_trusted(path.lstat()):
                raise refused(f"another user has made the link {shown(path)}")
            path = path.parent / path.readlink()
        path = path.absolute()
    except OSError:
        raise refused("the working folder was removed; name an absolute path") from None
    if found is None:
        if not path.parent.is_dir():
            raise refused(f"there is no folder {path.parent}")
    elif stat.S_ISDIR(found.st_mode):
        raise refused("that is a folder")
    elif not stat.S_ISREG(found.st_mode):
        raise refused("that is no regular file")
    elif not found.st_mode & _ANY_WRITE:  # root may write it all the same
        raise refused("the file is read-only")
    if not all(_may_write(each) for each in (path, path.parent) if each.exists()):
        raise refused("permission denied")
    return path


def keep_permissions(path: Path, descriptor: int) -> None:
    """Give an open file the permissions of the user's own file at ``path``, which it will replace.

    Not those of another user's file, who may have prepared it; never the bits that run a program as
    its owner. Without such a file, those of any new file stay.
    """
    if not hasattr(os, "fchmod"):  # Windows
        return
    with suppress(FileNotFoundError):
        old = path.lstat()
        if stat.S_ISREG(old.st_mode) and old.st_uid == os.geteuid():
            os.fchmod(descriptor, old.st_mode & 0o777)


def _is_trusted(found: os.stat_result) -> bool:
    """Return whether a file is the user's own, or the system's."""
    return not hasattr(os, "geteuid") or found.st_uid in (0, os.geteuid())


def _may_write(path: Path) -> bool:
    return os.access(path, os.W_OK, effective_ids=os.access in os.supports_effective_ids)


def _with_status(text: str | Path) -> tuple[Path, os.stat_result | None]:
    try:
        path = Path(text).expanduser()
        return path, path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return path, None
    except RuntimeError:  # of expanduser
        start = shown(Path(text).parts[0])
        raise SpecError(f"{shown(text)}: no home folder is known for {start}") from None
    except OSError as error:
        raise SpecError(f"{shown(text)}: {error.strerror or 'no such path'}") from None
    except ValueError:
        raise SpecError(f"{shown(text)}: no path has such characters") from None


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


def shown(text: str | Path) -> str:
    """Return a path as a message names it."""
    return harmless(str(text), 200)
