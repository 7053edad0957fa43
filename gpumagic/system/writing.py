"""Write a file that a user has named: every file that gpumagic writes.

Other users may write to its folder, too, and could put a link where a file is about to be made. So
the folder is opened step by step, and of the links in its path only the user's own and the system's
are followed. The file is made in a private folder, copied to a new file beside the old one, and
takes its place at once.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from gpumagic.errors import SpecError
from gpumagic.system.user_paths import is_another_user, shown, user_path

#: Whether a folder can be opened, and files named by it. Elsewhere all is done by names.
_BY_FOLDER = sys.platform.startswith("linux")
#: Permission to write, of the owner, the group or others.
_ANY_WRITE = stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH
#: As many links as Linux follows in a path.
_MOST_LINKS = 40
#: Linux's name of what a file allows to users and groups that are named in it.
_ACL = "system.posix_acl_access"


@contextmanager
def replacing(target: Path) -> Iterator[Path]:
    """Yield the name under which to write a file, which then becomes ``target``.

    The name has the suffix of ``target``, which is unchanged if the body raises. The permissions
    of the user's own old file stay; those of a new one are as ever.

    Raises:
        SpecError: the file cannot be written, or not without following another user's link.
    """
    with _one_line(target), ExitStack() as undo:
        folder, name = _find(target, undo)
        private = TemporaryDirectory(prefix="gpumagic-", ignore_cleanup_errors=True)
        made = Path(undo.enter_context(private), f"file{name.suffix[:20]}")
        yield made
        new = name.with_name(f".{name.name[:100]}.{os.urandom(8).hex()}")
        undo.callback(_remove, new, folder)
        old = _own_old(folder, name, undo)
        mode = 0o666 if old is None else 0o600  # nobody else opens it before it has its permissions
        opener = partial(os.open, mode=mode, dir_fd=folder)
        with made.open("rb") as source, open(new, "xb", opener=opener) as copy:
            if old is not None:
                _keep_permissions(copy.fileno(), old)
            shutil.copyfileobj(source, copy)
        os.replace(new, name, src_dir_fd=folder, dst_dir_fd=folder)


def output_path(text: str | Path) -> Path:
    """Return the absolute path that a user has typed for a file, for `replacing`.

    The code that is to run before the file is written may change the working folder.

    Raises:
        SpecError: it could not be written now: the path is not valid or no regular file, its folder
            does not exist, one of the two may not be written, or another user has made a link in
            it.
    """
    with _one_line(text or "''"), ExitStack() as undo:
        if not str(text):
            raise OSError("that is no name of a file")
        path = user_path(text)
        try:
            path = path.absolute()
        except OSError:
            raise OSError("the working folder was removed; name an absolute path") from None
        _find(path, undo)
    return path


@contextmanager
def _one_line(path: str | Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        why = error.strerror or str(error)
        raise SpecError(f"cannot write {shown(path)}: {why}") from None


def _find(path: Path, undo: ExitStack) -> tuple[int | None, Path]:
    """Open the folder of a file, until ``undo``; return it, and the file's name in it."""
    folder, name = _followed(path, undo) if _BY_FOLDER else (None, path.resolve())
    _check(folder, name)
    return folder, name


def _followed(path: Path, undo: ExitStack) -> tuple[int, Path]:
    """Open one folder of a path after the other; follow links, but those of another user."""

    def opened(name: str, folder: int | None) -> int:
        found = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
        undo.callback(os.close, found)
        return found

    folder = root = opened("/", None)
    where, links, left = "/", 0, [*reversed(path.parts[1:])] or ["/"]
    while True:
        name = left.pop()
        try:
            found = opened(name, folder)
        except (FileNotFoundError, NotADirectoryError):
            if left or not stat.S_ISDIR(os.fstat(folder).st_mode):
                raise OSError(f"there is no folder {shown(path.parent)}") from None
            return folder, Path(name)
        status = os.fstat(found)
        if stat.S_ISLNK(status.st_mode):
            if is_another_user(status.st_uid):
                raise OSError(f"another user has made the link {shown(f'{where}{name}')}")
            links += 1
            if links > _MOST_LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
            to = Path(os.readlink("", dir_fd=found))
            if to.is_absolute():
                folder, where = root, "/"
            left += reversed(to.parts[to.is_absolute() :] or ["."])
        elif left:
            folder, where = found, f"{where}{name}/"
        else:
            return folder, Path(name)


def _check(folder: int | None, name: Path) -> None:
    """Refuse what is no regular file, and what may not be written."""
    try:
        old = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        pass
    else:
        if stat.S_ISDIR(old.st_mode):
            raise OSError("that is a folder")
        if not stat.S_ISREG(old.st_mode):
            raise OSError("that is no regular file")
        if not old.st_mode & _ANY_WRITE:  # root may write it all the same
            raise OSError("the file is read-only")
        _check_access(name, folder)
    _check_access(name.parent, folder)


def _check_access(path: Path, folder: int | None) -> None:
    effective = os.access in os.supports_effective_ids
    if not os.access(path, os.W_OK, dir_fd=folder, effective_ids=effective):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def _own_old(folder: int | None, name: Path, undo: ExitStack) -> int | None:
    """Open the user's own file that is replaced, for its permissions; None without one.

    Those of another user's, who may have prepared it, are not taken.
    """
    if not _BY_FOLDER:
        return None
    with suppress(FileNotFoundError):
        old = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
        undo.callback(os.close, old)
        status = os.fstat(old)
        if stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid():
            return old
    return None


def _keep_permissions(new: int, old: int) -> None:
    """Give a new file the permissions of the old one, but the bits to run it as its owner.

    Its folder may have given others access to it (by a default ACL): that is taken away.
    """
    status, acl = os.fstat(old), None
    mode = status.st_mode & 0o777
    with suppress(OSError):  # it has none, or the file system has none
        os.removexattr(new, _ACL)
    with suppress(OSError):
        acl = os.getxattr(f"/proc/self/fd/{old}", _ACL)
        mode &= ~stat.S_IRWXG  # these bits are the most that the ACL gives, not the group's
    try:
        os.fchown(new, -1, status.st_gid)
    except PermissionError:  # a group of which the user is no member
        mode, acl = mode & ~stat.S_IRWXG, None
    os.fchmod(new, mode)
    if acl is not None:
        os.setxattr(new, _ACL, acl)


def _remove(new: Path, folder: int | None) -> None:
    with suppress(OSError):  # it is in its place, or another user has moved it
        os.unlink(new, dir_fd=folder)
