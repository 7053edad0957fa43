"""Check the paths that a user has typed."""

from __future__ import annotations

import os
import stat
from pathlib import Path

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
        SpecError: the path is no regular file, its folder does not exist, or one of the two may not
            be written.
    """
    if not str(text):
        raise SpecError("cannot write '': that is no name of a file")
    path, found = _with_status(text)
    try:
        path = path.resolve() if path.is_symlink() else path.absolute()
    except OSError:
        raise SpecError(
            f"cannot write {shown(text)}: the working folder was removed; name an absolute path"
        ) from None
    if found is None:
        if not path.parent.is_dir():
            raise SpecError(f"cannot write {shown(text)}: there is no folder {path.parent}")
    elif stat.S_ISDIR(found.st_mode):
        raise SpecError(f"cannot write {shown(text)}: that is a folder")
    elif not stat.S_ISREG(found.st_mode):
        raise SpecError(f"cannot write {shown(text)}: that is no regular file")
    elif not found.st_mode & _ANY_WRITE:  # root may write it all the same
        raise SpecError(f"cannot write {shown(text)}: the file is read-only")
    if not all(_may_write(each) for each in (path, path.parent) if each.exists()):
        raise SpecError(f"cannot write {shown(text)}: permission denied")
    return path


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


def shown(text: str | Path) -> str:
    """Return a path as a message names it."""
    return harmless(str(text), 200)
