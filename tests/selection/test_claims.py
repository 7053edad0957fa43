"""Claims of GPUs: real processes that choose at once, and folders and files that are hostile."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpumagic.cuda.process_state import STATE, Choice
from gpumagic.results import Device, DeviceTable
from gpumagic.selection import claim_entry, claim_folder, claims, device_table
from gpumagic.selection.claim_entry import ClaimError
from gpumagic.selection.claim_folder import VARIABLE, Folder, open_folder
from gpumagic.selection.spec import Wants, pick
from tests.support.other_user import UID, needs_root

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="claims need Linux")
ROOT = Path(__file__).parents[2]
UUIDS = tuple(f"GPU-{n}" for n in range(8))
DEVICES = tuple(Device(n, uuid=uuid, memory_free=10) for n, uuid in enumerate(UUIDS))


@pytest.fixture
def folder(shared_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder like ``/tmp`` for the registry; this process claims nothing before and after."""
    monkeypatch.setenv(VARIABLE, str(shared_folder))
    monkeypatch.setattr(STATE, "choice", Choice())
    claims.registration().may_inherit = False
    monkeypatch.setattr(claims.registration(), "parked", None)
    yield shared_folder
    monkeypatch.setenv(VARIABLE, str(shared_folder))
    claims.undo()


def auto(others: claims.Claims) -> tuple[str, ...]:
    """What ``%gpu auto`` picks of eight equal GPUs."""
    return pick(DEVICES, 1, Wants(), claims=lambda device: claims.count(device, others))


_PROGRAM = """
import fcntl, os, pwd, sys  # another user may not be able to read this Python
from gpumagic.cuda.process_state import STATE
from gpumagic.results import Device
from gpumagic.selection import claims
from gpumagic.selection.spec import Wants, pick
assert not {"torch", "IPython", "pynvml"} & sys.modules.keys()
DEVICES = [Device(n, uuid=f"GPU-{n}", memory_free=10) for n in range(8)]

def auto(others):
    return pick(DEVICES, 1, Wants(), claims=lambda device: claims.count(device, others))

def become(uid):
    if uid:
        os.setgroups([]), os.setgid(uid), os.setuid(uid)
"""


class Chooser:
    """A process that does something with claims, one line after the other."""

    def __init__(self, source: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM + source],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def go_on(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def kill(self) -> None:
        self.process.kill()
        if not self.process.stdout.closed:  # type: ignore[union-attr]
            self.process.communicate()


@contextmanager
def chooser(source: str, first: str | None = None) -> Iterator[Chooser]:
    """A `Chooser` that has printed its ``first`` line; killed at the end."""
    one = Chooser(source)
    try:
        if first is not None:
            assert one.line() == first
        yield one
    finally:
        one.kill()


#: Forks processes that choose at the same moment: uids, seconds of patience; prints their choices.
_MANY = """
import json, time
def together(uids, patience):
    ready, go = os.pipe(), os.pipe()
    answers, done = os.pipe(), os.pipe()
    children = []
    for uid in uids:
        child = os.fork()
        if not child:
            os.close(go[1]), os.close(done[1])
            become(uid)
            os.write(ready[1], b".")
            os.read(go[0], 1)  # returns when the writing end is closed
            chosen, _, error = claims.choose(auto, patience)
            line = json.dumps([os.getpid(), uid, chosen, str(error or "")])
            os.write(answers[1], line.encode() + b"\\n")
            os.read(done[0], 1)
            os._exit(0)
        children.append(child)
    os.close(answers[1])
    for _ in uids:
        os.read(ready[0], 1)
    os.close(go[1])
    with open(answers[0]) as file:
        lines = [json.loads(file.readline()) for _ in uids]
    listed = [[c.pid, c.uuids] for c in claims.all_claims()]
    print(json.dumps([lines, listed]), flush=True)
    os.close(done[1])
    for child in children:
        os.waitpid(child, 0)
"""


def together(uids: list[int], patience: float) -> tuple[list[Any], list[Any]]:
    """What processes of these uids chose at the same moment, and the claims that were listed."""
    done = subprocess.run(
        [sys.executable, "-c", f"{_PROGRAM}{_MANY}\ntogether({uids}, {patience})"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines, listed = json.loads(done.stdout)
    return lines, listed


# --- many at once ----------------------------------------------------------------------------


def test_a_hundred_processes_that_choose_at_once_are_spread_over_eight_gpus(folder: Path) -> None:
    """None lost: each is listed with what it chose. None doubled: no GPU has more than its share.

    Of one user 16 claims are read, so as root these are ten users. The common lock is waited for
    as long as this machine needs.
    """
    number = 100 if os.geteuid() == 0 else 16
    uids = [60_000 + n % 10 if os.geteuid() == 0 else 0 for n in range(number)]
    lines, listed = together(uids, 200)
    assert [line for line in lines if line[3]] == []
    chosen = {pid: tuple(uuids) for pid, _, uuids, _ in lines}
    assert {pid: tuple(uuids) for pid, uuids in listed} == chosen
    assert len(chosen) == number
    counts = Counter(uuid for uuids in chosen.values() for uuid in uuids)
    assert counts.keys() == {*UUIDS}
    assert max(counts.values()) - min(counts.values()) <= 1


@needs_root
def test_a_common_lock_that_cannot_be_had_delays_but_does_not_double(folder: Path) -> None:
    """Another user never releases the lock; eight processes that choose at once get eight GPUs."""
    hold = (
        f"become({UID})\n"
        "import fcntl\n"
        f"file = os.open({str(folder / 'gpumagic.lock')!r}, os.O_RDONLY | os.O_CREAT, 0o644)\n"
        "fcntl.flock(file, fcntl.LOCK_EX)\nprint('held', flush=True)\ninput()"
    )
    with chooser(hold, "held"):
        lines, listed = together([0] * 8, 0.2)
    assert [line for line in lines if line[3]] == []
    assert sorted(uuids[0] for _, _, uuids, _ in lines) == sorted(UUIDS)
    assert len(listed) == 8


def test_a_process_that_is_killed_with_the_lock_frees_it(folder: Path) -> None:
    hold = (
        "from gpumagic.selection.claim_folder import open_folder\n"
        "with open_folder() as f, f.lock(1.0) as held:\n"
        "    claims.registration().publish(f, ('GPU-0',))\n"
        "    print(held, flush=True)\n    input()"
    )
    with chooser(hold, "True") as other:
        with open_folder() as opened, opened.lock(0.05) as held:
            assert not held
        assert [claim.uuids for claim in claims.all_claims()] == [("GPU-0",)]
        other.kill()
        with open_folder() as opened, opened.lock(0.0) as held:
            assert held
        assert claims.all_claims() == []
    chosen, others, error = claims.choose(auto)
    assert (chosen, others, error) == (("GPU-0",), {}, None)
    assert len([*folder.glob("gpumagic-*")]) == 1, "the dead process's file is removed"


def test_auto_takes_a_claimed_gpu_only_if_nothing_else_fits(folder: Path) -> None:
    with chooser("print(claims.choose(auto)[0][0], flush=True)\ninput()", "GPU-0"):
        chosen, others, error = claims.choose(auto)
        assert (chosen, error) == (("GPU-1",), None)
        assert [*others] == ["GPU-0"]

        def only_first(others: claims.Claims) -> tuple[str, ...]:
            return pick(DEVICES[:1], 1, Wants(), claims=lambda d: claims.count(d, others))

        chosen, others, error = claims.choose(only_first)
        assert (chosen, error) == (("GPU-0",), None)
        assert len(others["GPU-0"]) == 1
        found = {claim.own: claim for claim in claims.all_claims()}
        assert found[True].pid == os.getpid()
        assert found[False].uuids == found[True].uuids == ("GPU-0",)
        assert found[False].mine
        assert str(found[False]) == f"process {found[False].pid}"
        assert str(found[True]) == "this kernel"


def test_of_two_that_chose_without_the_lock_the_later_one_chooses_again(folder: Path) -> None:
    """The one whose claim was published later, if it did not know of the other's."""
    claim = "claims.claim(('GPU-0', 'GPU-1'))\nprint('claimed', flush=True)\ninput()\n"
    ask = "print(claims.is_claimed_before(('GPU-1',), {}), flush=True)\ninput()"
    with chooser(claim + ask, "claimed") as other:
        claims.claim(("GPU-1", "GPU-2"))
        assert claims.is_claimed_before(("GPU-1", "GPU-2"), {})
        assert claims.is_claimed_before(("GPU-1",), {"GPU-0": [other.process.pid]})
        assert not claims.is_claimed_before(("GPU-1",), {"GPU-1": [other.process.pid]})
        assert not claims.is_claimed_before(("GPU-2",), {})
        other.go_on()
        assert other.line() == "False"


def test_of_two_that_chose_within_one_tick_both_choose_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The times of their claims are equal: the other may not have seen this one's."""
    read = Folder.read
    monkeypatch.setattr(Folder, "read", lambda self: [replace(c, published=1) for c in read(self)])
    with chooser("claims.claim(('GPU-0',))\nprint('claimed', flush=True)\ninput()", "claimed"):
        claims.claim(("GPU-0", "GPU-1"))
        assert claims.is_claimed_before(("GPU-0",), {})
        assert not claims.is_claimed_before(("GPU-1",), {})


def test_a_fork_does_not_keep_its_parents_claim(folder: Path) -> None:
    """A forked process inherits the lock, which must end with the parent."""
    fork = (
        "claims.claim(('GPU-3',))\n"
        "if os.fork():\n    os._exit(0)\n"
        "assert STATE.choice.claim == ()\n"
        "print('forked', flush=True)\ninput()"
    )
    with chooser(fork, "forked") as other:
        other.process.wait()
        assert claims.all_claims() == []


# --- this process's claim --------------------------------------------------------------------


def test_a_claim_is_replaced_restored_and_withdrawn(folder: Path) -> None:
    claims.claim(("GPU-1", "GPU-2"))
    before = STATE.snapshot()
    assert before.choice.claim == ("GPU-1", "GPU-2")
    claims.claim(("GPU-5",))
    assert [claim.uuids for claim in claims.all_claims()] == [("GPU-5",)]
    STATE.restore(before)
    assert [claim.uuids for claim in claims.all_claims()] == [("GPU-1", "GPU-2")]
    assert STATE.choice.claim == ("GPU-1", "GPU-2")
    claims.claim(())
    assert STATE.choice.claim == ()
    assert [path.name for path in folder.glob("gpumagic-*")] == []


def test_a_file_that_a_cleaner_removed_is_written_again(folder: Path) -> None:
    claims.claim(("GPU-1",))
    (path,) = folder.glob("gpumagic-*.json")
    path.unlink()
    assert [claim.uuids for claim in claims.all_claims()] == [("GPU-1",)]
    assert path.exists()


def test_what_is_published_is_no_more_than_is_said(folder: Path) -> None:
    claims.claim(("GPU-1",))
    (path,) = folder.glob("gpumagic-*.json")
    assert path.stat().st_mode & 0o777 == 0o644
    always = {"version", "pid", "start", "namespace", "boot", "uuids"}
    assert json.loads(path.read_bytes()).keys() == always
    claims.set_parked(True)
    assert json.loads(path.read_bytes()).keys() == always | {"parked"}
    assert claims.all_claims()[0].parked, "also where the notebook is not published"
    claims.registration().parked = None
    claims.publish_notebook("/home/ann/train.ipynb".rpartition("/")[2], busy=False)
    fields = json.loads(path.read_bytes())
    assert fields.keys() == always | {"notebook", "last_cell"}
    assert fields["notebook"] == "train.ipynb"
    claims.set_parked(True)
    (claim,) = claims.all_claims()
    assert (claim.notebook, claim.parked) == ("train.ipynb", True)
    assert claim.idle is not None
    assert claim.idle >= 1
    claims.publish_notebook("train.ipynb", busy=True)
    assert claims.all_claims()[0].idle == 0
    claims.registration().parked = None
    claims.publish_notebook(None, busy=False)
    assert json.loads(path.read_bytes()).keys() == always


# --- folders and systems that allow no claim ---------------------------------------------------


def _refused() -> str:
    """Choose where no claim can be made: the choice is made; return the one line on the claim."""
    chosen, others, error = claims.choose(auto)
    assert chosen == ("GPU-0",)
    assert others == {}
    assert STATE.choice.claim == ()
    assert error is not None
    assert "\n" not in str(error)
    with pytest.raises(ClaimError):
        claims.claim(("GPU-1",))
    assert STATE.choice.claim == ()
    return str(error)


def test_a_folder_that_is_not_there(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, str(folder / "missing"))
    assert _refused().endswith("cannot be opened (No such file or directory)")


def test_a_folder_that_is_a_link(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder.parent / "link").symlink_to(folder)
    monkeypatch.setenv(VARIABLE, str(folder.parent / "link"))
    assert "cannot be opened" in _refused()


@needs_root
def test_a_folder_of_another_user(folder: Path) -> None:
    os.chown(folder, UID, -1)
    assert _refused() == f"{folder} belongs to another user (uid {UID})"


def test_a_folder_without_the_sticky_bit(folder: Path) -> None:
    folder.chmod(0o777)
    assert "no sticky bit" in _refused()


def test_a_folder_on_a_network(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    device = folder.stat().st_dev
    mount = f"9 1 {os.major(device)}:{os.minor(device)} / /tmp rw - nfs4 server:/tmp rw"
    read = claim_folder.system_files.read
    monkeypatch.setattr(
        claim_folder.system_files,
        "read",
        lambda path: mount if path.endswith("mountinfo") else read(path),
    )
    assert _refused() == f"{folder} is on a network (nfs4)"


@pytest.mark.parametrize("value", ["2", "invisible", "1"])
def test_a_system_that_hides_processes_is_told_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    read = claim_folder.system_files.read
    mounts = f"/dev/vda / ext4 rw 0 0\nproc /proc proc rw,relatime,hidepid={value} 0 0\n"
    monkeypatch.setattr(
        claim_entry.system_files,
        "read",
        lambda path: mounts if path == "/proc/mounts" else read(path),
    )
    assert "hidepid" in _refused()
    assert [*folder.iterdir()] == []


_TRIES = """
chosen, others, error = claims.choose(auto)
print(chosen[0], STATE.choice.claim, error, sep="|", flush=True)
"""


@needs_root
def test_a_folder_that_may_only_be_read(folder: Path) -> None:
    folder.chmod(0o755)
    with chooser(f"become({UID})\n{_TRIES}") as other:
        line = other.line()
    assert line == f"GPU-0|()|nothing can be written to {folder} (Permission denied)"


def test_a_disk_that_is_full(folder: Path) -> None:
    """A write that fails for lack of space: here by the limit of a file's size."""
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))\n"
    with chooser(limit + _TRIES) as other:
        line = other.line()
    assert line == f"GPU-0|()|nothing can be written to {folder} (File too large)"
    assert [path.name for path in folder.glob("gpumagic-*")] == []


@needs_root
def test_a_name_that_another_user_has_taken(folder: Path) -> None:
    """The sticky bit protects the other user's file: no claim is made, but the choice is."""
    with chooser(
        "from gpumagic.selection import claim_entry\n"
        f"become({UID - 1})\n"
        f"me = claim_entry.identity().name\nprint(me, flush=True)\ninput()\n{_TRIES}"
    ) as other:
        theirs = folder / other.line()
        theirs.touch()  # root's
        other.go_on()
        line = other.line()
    assert line.startswith(f"GPU-0|()|nothing can be written to {folder}")
    assert theirs.exists()


def test_more_claims_of_a_user_than_are_read_are_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claim_folder, "PER_USER", 1)
    with chooser("claims.claim(('GPU-0',))\nprint('claimed', flush=True)\ninput()", "claimed"):
        chosen, _, error = claims.choose(auto)
        assert chosen == ("GPU-1",)
        assert str(error) == "this user has 1 claims already, and more are not read"


# --- files that are not what they say ----------------------------------------------------------


@contextmanager
def planted(folder: Path, **changes: Any) -> Iterator[Path]:
    """A file, locked by this process, with the claim of this process changed."""
    import fcntl

    me = claim_entry.identity()
    entry = claim_entry.Entry(me.pid, me.start, me.namespace, me.boot, ("GPU-0",))
    path = folder / me.name
    path.write_bytes(claim_entry.encode(replace(entry, **changes)))
    with path.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield path


def listed() -> list[tuple[str, ...]]:
    return [claim.uuids for claim in claims.all_claims()]


def test_a_planted_file_that_is_right_is_read(folder: Path) -> None:
    with planted(folder):
        assert listed() == [("GPU-0",)]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\0" * 100,
        b"[" * 4000,
        b'{"version": 1}',
        b"[1, 2]",
        b'"' + b"x" * 5000 + b'"',
    ],
    ids=["empty", "zeros", "brackets", "no fields", "a list", "oversized"],
)
def test_garbage_is_no_claim(folder: Path, content: bytes) -> None:
    with planted(folder) as path:
        path.write_bytes(content)
        assert listed() == []
        assert claims.choose(auto)[::2] == (("GPU-0",), None)


@pytest.mark.parametrize(
    "changes",
    [
        {"pid": True},
        {"pid": -1},
        {"pid": 1.5},
        {"start": 2**70},
        {"uuids": []},
        {"uuids": ["GPU-0"] * 65},
        {"uuids": ["../../etc"]},
        {"uuids": ["GPU-\x1b[2J"]},
        {"uuids": "GPU-0"},
        {"uuids": [["GPU-0"]]},
        {"notebook": "x" * 101},
        {"notebook": "a/b"},
        {"notebook": 3},
        {"last_cell": float("nan")},
        {"last_cell": float("inf")},
        {"last_cell": -1},
        {"parked": 1},
        {"boot": None},
        {"boot": "another"},
        {"start": 12345},
        {"pid": 1},
        {"version": 2},
        {"token": "x"},
    ],
    ids=str,
)
def test_an_entry_with_a_wrong_field_is_no_claim(folder: Path, changes: dict[str, Any]) -> None:
    with planted(folder) as path:
        fields = json.loads(path.read_bytes()) | changes
        path.write_text(json.dumps(fields))
        assert listed() == []


def test_an_infinite_number_in_another_spelling_is_no_claim(folder: Path) -> None:
    with planted(folder) as path:
        text = path.read_text()
        path.write_text(text[:-1] + ', "last_cell": 1e999}')
        assert listed() == []


def test_a_file_without_its_lock_is_no_claim(folder: Path) -> None:
    with planted(folder):
        pass
    assert listed() == []


def test_a_lock_that_another_process_holds_is_no_claim(folder: Path) -> None:
    """``/proc/locks`` has the pid of the process that holds it."""
    with planted(folder) as path:
        pass
    hold = (
        f"import fcntl\nfile = open({str(path)!r})\nfcntl.flock(file, fcntl.LOCK_EX)\n"
        "print('held', flush=True)\ninput()"
    )
    with chooser(hold, "held"):
        assert listed() == []


def test_links_and_pipes_are_no_claims(folder: Path) -> None:
    with planted(folder) as path:
        inside = path.rename(folder.parent / "elsewhere")
        path.symlink_to(inside)
        assert listed() == []
        path.unlink()
        os.link(inside, path)
        assert listed() == []
        path.unlink()
        os.mkfifo(path)
        assert listed() == []
        path.unlink()
        path.mkdir()
        assert listed() == []
        path.rmdir()


@needs_root
def test_the_owner_is_the_files_not_the_names(folder: Path) -> None:
    """Another user's file under this user's name, and with this process's fields."""
    with planted(folder) as path:
        os.chown(path, UID, -1)
        assert listed() == []
        path.rename(folder / path.name.replace("gpumagic-0-", f"gpumagic-{UID}-"))
        assert listed() == [], "the process is not that user's"


@needs_root
def test_a_second_user_sees_the_claim_and_whose_it_is(folder: Path) -> None:
    claims.claim(("GPU-4",))
    look = (
        f"become({UID})\n"
        "(claim,) = claims.all_claims()\n"
        "print(claim.uuids, claim.user, claim.mine, claim.own, claim, sep='|', flush=True)\n"
        "print(claims.choose(auto)[0], flush=True)\ninput()"
    )
    with chooser(look) as other:
        assert other.line() == f"('GPU-4',)|root|False|False|process {os.getpid()} of root"
        assert other.line() == "('GPU-0',)"
        theirs = next(claim for claim in claims.all_claims() if not claim.own)
        assert theirs.user == "nobody"
        assert not theirs.mine


@needs_root
def test_another_users_files_hide_no_claim(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Thousands under their own name and under this user's, all listed before the claim."""
    for number in range(1, 3001):
        for uid in (0, UID):
            path = folder / f"gpumagic-{uid}-{number}-123.json"
            path.write_bytes(b"x")
            os.chown(path, UID, -1)
    scandir = os.scandir
    by_name = lambda found: sorted(found, key=lambda entry: len(entry.name))  # noqa: E731
    monkeypatch.setattr(claim_folder.os, "scandir", lambda fd: nullcontext(by_name(scandir(fd))))
    monkeypatch.setattr(claim_folder, "_SECONDS", 100)  # however slow this machine is
    with chooser("print(claims.choose(auto)[0][0], flush=True)\ninput()", "GPU-0"):
        assert listed() == [("GPU-0",)]
        assert claims.choose(auto)[::2] == (("GPU-1",), None)


def test_more_files_than_can_be_looked_at_are_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(1, 101):
        (folder / f"gpumagic-12345-{number}-123.json").write_bytes(b"x")
    seconds = iter(range(1000))
    monkeypatch.setattr(claim_folder.time, "thread_time", lambda: next(seconds))
    monkeypatch.setattr(claim_folder, "_SECONDS", 50.5)
    refused = f"{folder} has too many files of claims to read"
    assert _refused().startswith(refused)
    assert f"uid {os.geteuid()} owns 50 that are no claims" in _refused()
    monkeypatch.setattr(device_table.cuda_devices, "devices", lambda **_: DeviceTable(DEVICES))
    (note,) = device_table.devices(processes=False).notes
    assert note.startswith(f"claims are not shown: {refused}")


def test_of_a_user_no_more_files_are_read_than_may_claim(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(1, 101):
        (folder / f"gpumagic-{os.geteuid()}-{number}-123.json").write_bytes(b"x")
    read: list[str] = []
    with monkeypatch.context() as patch, open_folder() as opened:
        patch.setattr(claim_folder.Folder, "_read", lambda _, name: read.append(name))
        assert opened.read() == []
    assert len(read) == claim_folder.PER_USER
    assert claims.choose(auto)[0] == ("GPU-0",), "orphans of this user are removed"
    assert len([*folder.glob("gpumagic-*.json")]) == 1


@pytest.mark.parametrize("plant", [Path.mkdir, os.mkfifo, lambda path: path.symlink_to("away")])
def test_a_lock_that_is_no_file_is_not_waited_for(
    folder: Path, plant: Callable[[Path], object]
) -> None:
    plant(folder / "gpumagic.lock")
    with open_folder() as opened, opened.lock(60.0) as held:
        assert not held
    assert claims.choose(auto)[::2] == (("GPU-0",), None)


def test_a_folder_that_is_replaced_is_noticed(folder: Path) -> None:
    with open_folder() as opened:
        moved = folder.rename(folder.parent / "moved")
        folder.mkdir()
        with pytest.raises(ClaimError, match="was replaced"):
            claims.registration().publish(opened, ("GPU-0",))
        assert [*folder.iterdir()] == []
        folder.rmdir()
        moved.rename(folder)


def test_a_claim_without_memory_expires(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the file system's time of the file, not by a field of its owner."""
    monkeypatch.setattr(claims.devices, "in_first_pid_namespace", lambda: True)
    with planted(folder), open_folder() as opened:
        (found,) = opened.read()
    used = replace(DEVICES[0], processes=())
    old = replace(found, published=int((time.time() - 3600) * 1e9))
    assert claims.count(used, {"GPU-0": [found]}) == 1
    assert claims.count(used, {"GPU-0": [old]}) == 0
    assert claims.count(DEVICES[0], {"GPU-0": [old]}) == 1, "NVML does not list processes"
    assert claims.count(used, {"GPU-0": [replace(old, here=False)]}) == 1


def test_the_signal_that_ends_a_kernel_ends_its_claim(folder: Path) -> None:
    source = "claims.claim(('GPU-0',))\nprint('claimed', flush=True)\ninput()"
    with chooser(source, "claimed") as other:
        assert listed() == [("GPU-0",)]
        other.process.send_signal(signal.SIGSEGV)
        other.process.wait()
        assert listed() == []


def test_a_program_that_replaces_this_one_inherits_the_claim(folder: Path) -> None:
    """The lock is never released meanwhile; the new program's own claim replaces it."""
    new = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r})\n"
        "print('replaced', flush=True)\ninput()\n"
        "from gpumagic.selection import claims\n"
        "claims.claim(('GPU-6',))\nprint('claimed', flush=True)\ninput()"
    )
    old = (
        "from gpumagic.restart import execve\n"
        "claims.claim(('GPU-5',))\n"
        f"execve.replace([sys.executable, '-c', {new!r}], dict(os.environ), '/',"
        " defer_interrupts=False)"
    )
    with chooser(old, "replaced") as other:
        assert listed() == [("GPU-5",)]
        other.go_on()
        assert other.line() == "claimed"
        assert listed() == [("GPU-6",)]
        links = [link.readlink() for link in Path(f"/proc/{other.process.pid}/fd").iterdir()]
        assert len([link for link in links if link.name.startswith("gpumagic-")]) == 1
