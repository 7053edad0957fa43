"""No file of the user is overwritten, and none is made elsewhere, by what others have put there.

Each file that gpumagic writes: ``--save``, ``--trace``, ``%gpumem plot`` and ``%gpumem snapshot``,
in a folder in which another user may do everything.
"""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from IPython.core.error import UsageError

from gpumagic.errors import SpecError
from gpumagic.system.writing import replacing
from tests.support.other_user import BECOME, UID, needs_root, run_as_other_user

pytestmark = needs_root

LINES = {
    "save": "%cudatime -q --save '{}' 1",
    "trace": "%cudatime --trace '{}' torch.ones(3, device='cuda').sum().item()",
    "plot": "%gpumem plot '{}'",
    "snapshot": "%gpumem snapshot '{}'",
}


@pytest.fixture
def group_folder(shared_folder: Path) -> Path:
    """A folder that the other user may write to, without the sticky bit: no protection by Linux."""
    shared_folder.chmod(0o777)
    return shared_folder


@pytest.fixture(params=LINES)
def write(request: Any, run_cell: Callable[..., Any], torch: Any) -> Callable[[Path], str]:
    """``write(path)``: writes a file of each kind there by a magic; returns what that shows."""
    run_cell("import torch\n%gpumem on -q")
    run_cell("torch.ones(9, device='cuda').sum().item()")

    def run(path: Path) -> str:
        return str(run_cell(LINES[request.param].format(path)))

    return run


@pytest.fixture
def precious(tmp_path: Path) -> Iterator[Path]:
    """A file of the user's that is as it was afterwards."""
    path = tmp_path / "precious.svg"
    path.write_text("mine")
    yield path
    assert path.read_text() == "mine"
    assert [*tmp_path.iterdir()] == [path]


def test_a_file_is_written(write: Any, group_folder: Path) -> None:
    """In place of the user's own, with its permissions; through his own link, which stays one."""
    target, link = group_folder / "file.svg", group_folder / "link.svg"
    write(target)
    assert target.stat().st_size > 10
    target.write_text("")
    target.chmod(0o640)
    link.symlink_to("file.svg")
    write(link)
    assert link.is_symlink()
    assert target.stat().st_size > 10
    assert target.stat().st_mode & 0o777 == 0o640
    assert {*group_folder.iterdir()} == {target, link}


def test_another_users_link_is_refused(write: Any, group_folder: Path, precious: Path) -> None:
    link = group_folder / "file.svg"
    run_as_other_user(f"os.symlink({str(precious)!r}, {str(link)!r})")
    with pytest.raises(UsageError, match=f"another user has made the link {link}"):
        write(link)


def test_a_folder_that_is_another_users_link_is_refused(
    write: Any, group_folder: Path, precious: Path
) -> None:
    folder = group_folder / "results"
    run_as_other_user(f"os.symlink({str(precious.parent)!r}, {str(folder)!r})")
    own = group_folder / "own"
    own.symlink_to(folder)
    for path in (folder, own):
        with pytest.raises(UsageError, match=f"another user has made the link {folder}"):
            write(path / precious.name)


def test_a_link_beside_the_file_is_not_followed(
    write: Any, group_folder: Path, precious: Path
) -> None:
    """torch's profiler writes FILE.tmp first."""
    planted = [group_folder / name for name in ("file.svg.tmp", "file.tmp", ".file.svg.tmp")]
    for link in planted:
        run_as_other_user(f"os.symlink({str(precious)!r}, {str(link)!r})")
    write(group_folder / "file.svg")
    assert (group_folder / "file.svg").stat().st_size > 10
    assert all(link.is_symlink() for link in planted)


def test_the_permissions_of_another_users_file_are_not_taken(
    write: Any, group_folder: Path
) -> None:
    path = group_folder / "file.svg"
    run_as_other_user(f"open({str(path)!r}, 'x').close(); os.chmod({str(path)!r}, 0o4777)")
    write(path)
    assert (path.stat().st_uid, path.stat().st_mode & 0o7777) == (os.geteuid(), 0o644)


def test_nobody_else_opens_a_private_file_while_it_is_made(
    write: Any, shared_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who has opened it reads what is written later, whatever its permissions are then."""
    path, change, seen = shared_folder / "file.svg", os.fchmod, list[int]()
    path.touch(0o600)

    def watch(descriptor: int, mode: int) -> None:
        seen.append(os.fstat(descriptor).st_mode & 0o777)
        change(descriptor, mode)

    monkeypatch.setattr(os, "fchmod", watch)
    write(path)
    assert seen == [0o600]
    assert path.stat().st_mode & 0o777 == 0o600


#: The version of an access control list, then kind, permissions and id of each entry, of which the
#: last but two is the other user's: ``u::rwx,u:OTHER:rwx,g::r-x,m::rwx,o::r-x``.
_ENTRIES = ((1, 7, -1), (2, 7, UID), (4, 5, -1), (16, 7, -1), (32, 5, -1))
_OPEN_TO_OTHER = struct.pack("<I", 2) + b"".join(struct.pack("<HHi", *each) for each in _ENTRIES)


def test_no_folder_opens_a_private_file(group_folder: Path) -> None:
    """Its default ACL is for what is made in it; what the user has allowed by an ACL stays."""
    path, acl = group_folder / "file.svg", "system.posix_acl_access"
    path.touch(0o640)
    path.chmod(0o640)
    try:
        os.setxattr(group_folder, "system.posix_acl_default", _OPEN_TO_OTHER)
    except OSError:
        pytest.skip("this file system has no access control lists")
    with replacing(path) as made:
        made.write_text("new")
    assert path.stat().st_mode & 0o777 == 0o640
    assert acl not in os.listxattr(path)
    os.setxattr(path, acl, _OPEN_TO_OTHER)
    with replacing(path) as made:
        made.write_text("newer")
    assert os.getxattr(path, acl) == _OPEN_TO_OTHER


_RACE = """
import itertools, os
folder, precious = {folder!r}, {precious!r}
print("begun", flush=True)
for turn in itertools.count():
    try:
        for name in os.listdir(folder):
            path = os.path.join(folder, name)
            if "file.svg" in name:  # also that which is to take its place
                os.rename(path, os.path.join(folder, f"moved{{turn % 9}}"))
                os.symlink(precious, path)
        os.symlink(precious, os.path.join(folder, ("file.svg", "file.svg.tmp")[turn % 2]))
    except OSError:
        pass
"""


@contextmanager
def _attacked(folder: Path, precious: Path) -> Iterator[None]:
    """Another user puts links in the folder as fast as he can."""
    source = _RACE.format(folder=str(folder), precious=str(precious))
    with subprocess.Popen(
        [sys.executable, "-c", f"{BECOME}\n{source}"], cwd="/", stdout=subprocess.PIPE
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"begun\n"
            yield
            assert process.poll() is None
        finally:
            process.kill()


def test_no_race_lets_another_user_choose_the_file(
    write: Any, group_folder: Path, precious: Path
) -> None:
    path = group_folder / "file.svg"
    with _attacked(group_folder, precious):
        for _ in range(6):  # a plot takes long
            with suppress(UsageError):  # refused, for what has been put there
                write(path)
        for _ in range(100):
            with suppress(SpecError), replacing(path) as made:  # by which each kind is written
                made.write_text("new")


_NAMESPACE = """
import ctypes, os, sys
from pathlib import Path
from gpumagic.system.writing import replacing
os.setgroups([]); os.setgid(12345); os.setuid(12345)
libc = ctypes.CDLL(None)
libc.prctl(4, 1)  # PR_SET_DUMPABLE: what a change of the user takes away
if libc.unshare(0x10000000):  # CLONE_NEWUSER
    sys.exit("refused")
Path("/proc/self/uid_map").write_text("12345 12345 1")
with replacing(Path(sys.argv[1])) as made:
    made.write_text("new")
print(Path("/").stat().st_uid, Path(sys.argv[1]).read_text())
"""


def test_the_system_is_who_owns_its_root_folder(shared_folder: Path) -> None:
    """In a container of one user (Apptainer), root's files are those of "nobody"."""
    command = [sys.executable, "-c", _NAMESPACE, str(shared_folder / "file")]
    ran = subprocess.run(command, cwd="/", capture_output=True, text=True, timeout=60)
    if ran.stderr == "refused\n":
        pytest.skip("no user namespace can be made here")
    assert ran.stdout == "65534 new\n", ran.stderr
