"""Claim GPUs by a lock on what the kernel shows of each, so that ``auto`` spreads processes.

A kernel that has just chosen a GPU uses no memory on it yet. So every process that chooses holds a
``flock`` on ``/proc/driver/nvidia/gpus/…/information`` of its GPUs, which nobody can create, remove
or replace: there is no file to distrust or to clean up. Where that is missing, and for a MIG
instance, it is an empty file in ``/dev/shm``. The process that gets the exclusive lock is the
first; it then shares the lock with processes that choose the GPU all the same. ``/proc/locks`` has
the pids. A claim ends with its process, however that ends.

``auto`` takes the GPU with the fewest claims of those that fit; with ``--wait`` or ``--idle`` it
takes no claimed one.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from itertools import islice
from pathlib import Path

from gpumagic.cuda.processes import notebook
from gpumagic.results.claims import Claim
from gpumagic.results.devices import Device
from gpumagic.system import system_files
from gpumagic.system.text import reason

#: The claims of other processes, by UUID.
Others = Mapping[str, Sequence[Claim]]
#: Returns the UUIDs to choose, from others' claims.
Pick = Callable[[Others], tuple[str, ...]]

#: Passes the locked files to the program that replaces this one: ``pid:UUID=descriptor,…``.
_INHERITED = "_GPUMAGIC_CLAIMED"
_FOLDER = "/dev/shm"
#: The kernel's list of locks, and the most that are read of it. Anyone can hold hundreds of
#: thousands, and the time to read them grows with the square of their number.
_LOCKS, _MOST_READ = "/proc/locks", 10_000
#: The most claims on a device whose processes are looked up.
_MOST = 16


def _inherited() -> dict[str, int]:
    """Return what `pass_on` has passed to this program; a child has inherited nothing."""
    pid, _, entries = os.environ.pop(_INHERITED, "").partition(":")
    found = {}
    for entry in entries.split(",") if pid == str(os.getpid()) else ():
        uuid, _, descriptor = entry.partition("=")
        os.set_inheritable(int(descriptor), False)
        found[uuid] = int(descriptor)
    return found


#: The open file whose lock is the claim, by UUID.
_descriptors = _inherited()
if hasattr(os, "register_at_fork"):  # a forked worker may live longer than this process
    os.register_at_fork(after_in_child=lambda: hold(()))


def hold(uuids: tuple[str, ...]) -> dict[str, str]:
    """Claim exactly these devices for this process, also those that other processes claim.

    Returns why a device could not be claimed, by its UUID; `held` returns those that could.
    """
    failed = {}
    for uuid in {*_descriptors}.difference(uuids):
        os.close(_descriptors.pop(uuid))
    for uuid in uuids:
        try:
            _lock(uuid)
        except OSError as error:
            failed[uuid] = _why_not(path_of(uuid), error)
    return failed


def _why_not(path: Path, error: OSError) -> str:
    """Return why a device's file cannot be locked."""
    if isinstance(error, BlockingIOError):
        return f"another process has locked {path} and shares it with nobody"
    return f"{path} is a link" if path.is_symlink() else f"{path}: {reason(error)}"


def held() -> tuple[str, ...]:
    """Return the UUIDs of the devices that this process claims."""
    return tuple(_descriptors)


def release() -> None:
    """End the claims of this process."""
    hold(())


def pass_on(environment: dict[str, str]) -> Collection[int]:
    """Keep the claims through an ``execve`` with this environment; return their descriptors."""
    for descriptor in _descriptors.values():
        os.set_inheritable(descriptor, True)
    if _descriptors:
        entries = (f"{uuid}={each}" for uuid, each in _descriptors.items())
        environment[_INHERITED] = f"{os.getpid()}:{','.join(entries)}"
    return _descriptors.values()


def _is_first(uuid: str) -> bool:
    """Claim a device unless another process has; return False if one has.

    True also where it cannot be claimed: then nothing is known of others' claims either.
    """
    try:
        _lock(uuid, alone=True)
    except OSError as error:
        return not isinstance(error, BlockingIOError)
    return True


def _lock(uuid: str, *, alone: bool = False) -> None:
    """Lock a device's file; with ``alone`` only if no other process has.

    Raises:
        BlockingIOError: another process has locked it, or does not share it.
        OSError: it cannot be opened or locked.
    """
    if uuid in _descriptors:
        return
    import fcntl

    descriptor = _open(uuid)
    try:
        if alone:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Not atomic after that: another process may come in between, and is the first then.
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BaseException:
        os.close(descriptor)
        raise
    _descriptors[uuid] = descriptor


def claim_best(pick: Pick, usable: Sequence[str]) -> tuple[str, ...]:
    """Choose by others' claims on ``usable`` devices; return the choice.

    Chosen devices that nobody else claims are claimed at once; `hold` claims the others.

    Where another process was first meanwhile, its claim is known, and the choice is made again.
    """
    unlisted: set[str] = set()
    while True:
        others = others_of(usable)
        for uuid in unlisted:
            others[uuid] = others[uuid] or [Claim()]
        chosen = pick(others)
        taken = [uuid for uuid in chosen if not others.get(uuid) and not _is_first(uuid)]
        if not taken:
            return chosen
        # Of a process in another container only the lock is seen.
        unlisted.update(taken)


def others_of(uuids: Iterable[str]) -> dict[str, Sequence[Claim]]:
    """Return the claims of other processes on each device."""
    found = all_of(uuids, locked())
    return {uuid: [claim for claim in claims if not claim.own] for uuid, claims in found.items()}


def locked() -> Mapping[str, Collection[int]]:
    """Return the pids of those that have locked a file, by its device and inode (`_inode`).

    Some milliseconds pass: the kernel has a reader wait until all cores have seen that it reads.
    """
    lines, pids = list[str](), dict[str, set[int]]()
    with suppress(OSError):
        for _ in range(2):  # the kernel writes it page by page, and may leave out a line meanwhile
            with Path(_LOCKS).open() as file:
                lines += islice(file, _MOST_READ)
    for words in map(str.split, lines):
        if "FLOCK" in words[1:2]:
            pids.setdefault(words[5], set()).add(int(words[4]))
    return pids


def all_of(uuids: Iterable[str], pids: Mapping[str, Collection[int]]) -> dict[str, list[Claim]]:
    """Return the claims on each device, this process's too and first, as far as they are `locked`.

    There may be thousands: of those on a device all but `_MOST` are counted alone.
    """
    claim = cache(_claim)  # one look-up of each process
    found: dict[str, list[Claim]] = {}
    for uuid in uuids:
        own_first = sorted(pids.get(_inode(path_of(uuid)), ()), key=lambda p: (p != os.getpid(), p))
        listed = own_first if len(own_first) <= _MOST else own_first[: _MOST - 1]
        found[uuid] = [*filter(None, map(claim, listed))]
        if more := len(own_first) - len(listed):
            found[uuid].append(Claim(processes=more))
    return found


def all_uuids(device: Device) -> list[str]:
    """Return the UUIDs of a device and of its MIG instances, as far as they are known."""
    return [uuid for uuid in (device.uuid, *(part.uuid for part in device.mig)) if uuid]


def _claim(pid: int) -> Claim | None:
    """Return the claim of a process; None if it has ended, and only a child keeps its lock."""
    import psutil

    try:
        process = psutil.Process(pid)
        mine = process.uids().real == os.getuid()
        user = process.username()
    except psutil.Error:
        return None
    name = notebook(process) if mine else None
    return Claim(pid, user, own=pid == os.getpid(), mine=mine, notebook=name)


# --- the file that is locked -------------------------------------------------------------------


def path_of(uuid: str) -> Path:
    """Return the file that is locked for a device."""
    name = f"gpumagic-{uuid.replace('/', '-')}"
    listed = _listed(str(system_files.at("/")))
    return listed.get(uuid) or system_files.at(f"{_FOLDER}/{name}")


@cache
def _listed(_: str) -> Mapping[str, Path]:
    """Return the kernel module's file of each GPU, which stays the same below one root."""
    return system_files.listed_devices()


def _inode(path: Path) -> str:
    """Return device and inode of a file as ``/proc/locks`` writes them; empty without one."""
    try:
        status = path.lstat()
    except OSError:
        return ""
    device = status.st_dev
    return f"{os.major(device):02x}:{os.minor(device):02x}:{status.st_ino}"


def _open(uuid: str) -> int:
    """Open the file of a device for reading; one in ``/dev/shm`` is created for every user."""
    path = path_of(uuid)
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with suppress(FileNotFoundError):
        return os.open(path, flags)
    # Linux refuses O_CREAT for a file of another user in a folder that everyone may write to.
    try:
        descriptor = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o444)
    except FileExistsError:  # made by another process meanwhile
        return os.open(path, flags)
    os.fchmod(descriptor, 0o444)
    return descriptor
