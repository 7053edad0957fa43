"""The files of the registry of claims, in a folder that every user of the machine may write to.

Each process that claims GPUs has a file there, which it keeps locked (``flock``) until it ends; the
kernel releases the lock then. Other users write to the folder, so nothing in it is trusted: the
owner of a file is its uid, never a field; sizes, numbers and times are bounded; links are not
followed; a process is looked up in ``/proc``.
"""

from __future__ import annotations

import math
import os
import re
import stat
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from random import Random

from gpumagic.selection.claim_entry import (
    ClaimError,
    Entry,
    Identity,
    TooManyFilesError,
    encode,
    identity,
    parse,
    process,
)
from gpumagic.system import system_files

#: The environment variable that names another folder than the two below.
VARIABLE = "GPUMAGIC_CLAIMS"
#: The folder that an administrator may create, and the one that every machine has.
_FOLDERS = ("/run/gpumagic", "/tmp")
_LOCK = "gpumagic.lock"
_NAME = re.compile(r"gpumagic-(\d{1,10})-(\d{1,10})-(\d{1,20})\.json")
_UNFINISHED = re.compile(_NAME.pattern + r"\.new")
#: Seconds after which an unfinished file is an orphan.
_WRITING = 600
#: The most bytes of a file, files of a user, and seconds of CPU time to find those of all users.
_LARGEST, PER_USER, _SECONDS = 4096, 16, 0.25
#: File systems on which `flock` is not reliable.
_REMOTE = {"nfs", "nfs4", "cifs", "smb3", "lustre", "ceph", "beegfs", "gpfs", "afs", "fuse.sshfs"}
#: For the jitter of waiting; does not change the state of the user's `random`.
_RANDOM = Random()


@dataclass(frozen=True)
class Found:
    """A valid claim of a running process: the file's content, and the system's data of it."""

    entry: Entry
    uid: int
    #: When the file was published, in nanoseconds since the epoch, by the file system.
    published: int
    #: Whether the process is in this one's pid namespace.
    here: bool

    @property
    def age(self) -> float:
        """Return the seconds since the claim was published."""
        return max(time.time() - self.published / 1e9, 0.0)


# --- the folder ------------------------------------------------------------------------------


@dataclass
class Folder:
    """The registry's open folder; all files in it are opened relative to its descriptor."""

    path: str
    descriptor: int
    me: Identity

    @cached_property
    def _lock_owners(self) -> dict[int, set[int]]:
        """The pids that hold a lock, by inode, as far as the system lists them."""
        owners: dict[int, set[int]] = {}
        with suppress(OSError, ValueError, IndexError), Path("/proc/locks").open() as file:
            for line in file:
                words = line.split()
                if words[1] == "FLOCK":
                    owners.setdefault(int(words[5].rpartition(":")[2]), set()).add(int(words[4]))
        return owners

    def check(self) -> None:
        """Check that the path still names the open folder.

        Raises:
            ClaimError: the folder was replaced.
        """
        if not _same(self.path, self.descriptor):
            raise ClaimError(f"{self.path} was replaced by another folder")

    def _open(self, name: str, flags: int = 0) -> int:
        """Open a file of the folder for reading, never a link and without waiting for a writer."""
        flags |= os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        return os.open(name, flags, 0o644, dir_fd=self.descriptor)

    def read(self) -> list[Found]:
        """Return the valid claims of running processes, this one's too.

        Raises:
            TooManyFilesError: there are too many files to find all claims.
        """
        self.__dict__.pop("_lock_owners", None)
        claims = map(self._read, self._files(PER_USER))
        return [claim for claim in claims if claim is not None]

    def _files(self, most: float = math.inf, uid: int | None = None) -> Iterator[str]:
        """Yield the names of the registry's files, at most ``most`` of each user.

        Of all users, or of ``uid``. A file is no claim if it belongs to another user than its name
        says: one user's files, whatever their names, hide no claim of another user.

        Raises:
            TooManyFilesError: there are too many files to look at all.
        """
        limit = time.thread_time() + _SECONDS
        wrong, number = Counter[int](), Counter[str]()
        with os.scandir(self.descriptor) as entries:
            for entry in entries:
                match = _NAME.fullmatch(entry.name)
                if match is None or (uid is not None and match[1] != str(uid)):
                    continue
                if time.thread_time() > limit:
                    raise TooManyFilesError(self.path, wrong)
                if number[match[1]] >= most:
                    continue
                owner = _uid_of(entry.name, self.descriptor)
                if str(owner) == match[1]:
                    number[match[1]] += 1
                    yield entry.name
                else:
                    wrong[owner] += 1

    def _read(self, name: str) -> Found | None:
        """Return the claim in a file; None if it is not valid, or its process has ended."""
        try:
            descriptor = self._open(name)
        except OSError:
            return None
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:
                return None
            if status.st_size > _LARGEST:
                return None
            entry = parse(os.read(descriptor, _LARGEST + 1))
            if entry is None or name != f"gpumagic-{status.st_uid}-{entry.pid}-{entry.start}.json":
                return None
            if not self._is_alive(entry, status, descriptor):
                return None
            here = entry.namespace == self.me.namespace
            return Found(entry, status.st_uid, status.st_ctime_ns, here)
        except OSError:
            return None
        finally:
            os.close(descriptor)

    def _is_alive(self, entry: Entry, status: os.stat_result, descriptor: int) -> bool:
        """Return whether the process named in the file is running and holds the file's lock.

        Of a process in another container only the lock can be checked.
        """
        if entry.boot != self.me.boot or not _is_locked(descriptor):
            return False
        if entry.namespace != self.me.namespace:
            return True
        try:
            if process(entry.pid) != (status.st_uid, entry.start):
                return False
        except (OSError, ValueError, IndexError):
            return False
        owners = self._lock_owners.get(status.st_ino)
        return owners is None or entry.pid in owners

    # --- writing ---

    def publish(self, entry: Entry) -> int:
        """Write this process's file, replacing its earlier one; return its locked descriptor.

        Raises:
            ClaimError: the file cannot be written; an earlier one is kept.
        """
        import fcntl

        temporary = f"{self.me.name}.new"
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            with suppress(FileNotFoundError):  # left by an earlier attempt that was killed
                os.unlink(temporary, dir_fd=self.descriptor)
            descriptor = os.open(temporary, flags, 0o600, dir_fd=self.descriptor)
        except OSError as error:
            raise _not_written(self.path, error) from None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            data = encode(entry)
            if os.write(descriptor, data) != len(data):
                raise OSError(28, os.strerror(28))  # ENOSPC
            os.fchmod(descriptor, 0o644)
            os.rename(
                temporary, self.me.name, src_dir_fd=self.descriptor, dst_dir_fd=self.descriptor
            )
            self.check()
        except BaseException as error:
            with suppress(OSError):
                os.unlink(temporary, dir_fd=self.descriptor)
            os.close(descriptor)
            if isinstance(error, OSError):
                raise _not_written(self.path, error) from None
            raise
        return descriptor

    def remove(self) -> None:
        """Remove this process's file."""
        with suppress(OSError):
            os.unlink(self.me.name, dir_fd=self.descriptor)

    def remove_orphans(self) -> None:
        """Remove the files of this user's processes that have ended.

        Raises:
            ClaimError: the user has as many claims as are read, or there are too many files.
        """
        left = 0
        with os.scandir(self.descriptor) as entries:
            unfinished = [entry.name for entry in entries if _UNFINISHED.fullmatch(entry.name)]
        for name in unfinished:  # left by processes that were killed while writing
            with suppress(OSError):
                status = os.stat(name, dir_fd=self.descriptor, follow_symlinks=False)
                if status.st_uid == self.me.uid and time.time() - status.st_ctime > _WRITING:
                    os.unlink(name, dir_fd=self.descriptor)
        for name in {*self._files(uid=self.me.uid)} - {self.me.name}:
            if self._read(name) is not None:
                left += 1
            elif not self._is_held(name):
                with suppress(OSError):
                    os.unlink(name, dir_fd=self.descriptor)
        if left >= PER_USER:
            raise ClaimError(f"this user has {left} claims already, and more are not read")

    def _is_held(self, name: str) -> bool:
        try:
            descriptor = self._open(name)
        except OSError:
            return False
        try:
            return _is_locked(descriptor)
        finally:
            os.close(descriptor)

    # --- the common lock ---

    @contextmanager
    def lock(self, patience: float) -> Iterator[bool]:
        """Hold the lock that all processes hold while they choose; yield whether it was acquired.

        Any user who can read the lock's file can hold it without end, so this waits at most
        ``patience`` seconds.
        """
        descriptor = self._take_lock(time.monotonic() + patience)
        try:
            yield descriptor is not None
        finally:
            if descriptor is not None:
                os.close(descriptor)

    def _take_lock(self, until: float) -> int | None:
        import fcntl

        while True:
            try:
                descriptor = self._open_lock()
            except OSError:
                return None
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if _same(_LOCK, descriptor, self.descriptor):
                    return descriptor
            except OSError:  # another process holds it
                pass
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)
            if time.monotonic() >= until:
                return None
            time.sleep(_RANDOM.uniform(0.002, 0.02))

    def _open_lock(self) -> int:
        """Open the lock's file; create it only if there is none.

        Raises:
            OSError: it is no regular file, or may not be read.
        """
        try:
            descriptor = self._open(_LOCK)
        except FileNotFoundError:
            try:
                descriptor = self._open(_LOCK, os.O_CREAT | os.O_EXCL)
                os.fchmod(descriptor, 0o644)
            except FileExistsError:  # another process has created it meanwhile
                descriptor = self._open(_LOCK)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise OSError("no regular file")
        return descriptor


@contextmanager
def open_folder() -> Iterator[Folder]:
    """Open the registry's folder.

    Its owner can delete every file in it, so it must belong to root or to this user.

    Raises:
        ClaimError: there is no such folder, or it is not safe.
    """
    if os.name == "nt":
        raise ClaimError("claims need Linux")
    me = identity()
    path = os.environ.get(VARIABLE) or next(filter(os.path.isdir, _FOLDERS), _FOLDERS[-1])
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags)
    except OSError as error:
        raise ClaimError(f"{path} cannot be opened ({error.strerror})") from None
    try:
        _check(path, os.fstat(descriptor), me.uid)
        yield Folder(path, descriptor, me)
    finally:
        os.close(descriptor)


def _check(path: str, status: os.stat_result, uid: int) -> None:
    if status.st_uid not in (0, uid):
        raise ClaimError(f"{path} belongs to another user (uid {status.st_uid})")
    if status.st_mode & 0o022 and not status.st_mode & stat.S_ISVTX:
        raise ClaimError(f"in {path} every user may remove others' files (it has no sticky bit)")
    device = f"{os.major(status.st_dev)}:{os.minor(status.st_dev)}"
    for line in (system_files.read("/proc/self/mountinfo") or "").splitlines():
        left, _, right = line.partition(" - ")
        words = left.split()
        if len(words) > 2 and words[2] == device and right.split(" ")[0] in _REMOTE:
            raise ClaimError(f"{path} is on a network ({right.split(' ')[0]})")


def _not_written(path: str, error: OSError) -> ClaimError:
    return ClaimError(f"nothing can be written to {path} ({error.strerror})")


def _uid_of(name: str, folder: int) -> int:
    try:
        return os.stat(name, dir_fd=folder, follow_symlinks=False).st_uid
    except OSError:
        return -1


def _same(path: str, descriptor: int, folder: int | None = None) -> bool:
    """Return whether a path names the open file."""
    try:
        named = os.stat(path, dir_fd=folder, follow_symlinks=False)
    except OSError:
        return False
    return os.path.samestat(named, os.fstat(descriptor))


def _is_locked(descriptor: int) -> bool:
    """Return whether another open file holds the lock; a shared lock is held for a moment."""
    import fcntl

    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    fcntl.flock(descriptor, fcntl.LOCK_UN)
    return False


def own_descriptors(path: str, name: str) -> Sequence[int]:
    """Return this process's descriptors of the file ``name`` in the folder, also if removed.

    A process that was restarted in place has inherited one.
    """
    found = []
    wanted = str(Path(path).resolve() / name)
    with suppress(OSError):
        for link in [*Path("/proc/self/fd").iterdir()]:
            with suppress(OSError):
                if str(link.readlink()).removesuffix(" (deleted)") == wanted:
                    found.append(int(link.name))
    return found
