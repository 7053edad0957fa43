"""Claims of GPUs: real processes, of several users, that choose at once, are killed, fork, exec."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from gpumagic.cuda import device_table
from gpumagic.results.devices import Device, DeviceTable, MigInstance
from gpumagic.selection import claims
from gpumagic.selection.auto import pick
from gpumagic.selection.table import devices
from gpumagic.system import system_files
from tests.support.other_user import UID, needs_root
from tests.virtual_gpu import Scenario, default_uuid

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="claims need Linux")
ROOT = Path(__file__).parents[2]
UUIDS = [default_uuid(n) for n in range(8)]
INSTANCE = default_uuid(0, 0)


@pytest.fixture
def machine(shared_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The root of a machine with eight GPUs, open to other users; this process claims nothing."""
    Scenario(devices=8).write_files(shared_folder)
    for folder in shared_folder.rglob("*"):
        if folder.is_dir():
            folder.chmod(0o1777 if folder.name == "shm" else 0o755)
    monkeypatch.setenv(system_files.ROOT, str(shared_folder))
    yield shared_folder
    claims.release()


_PROGRAM = f"""
import fcntl, json, os, sys
import psutil, pwd  # another user may not be able to read this Python
from gpumagic.cuda.this_process import STATE
from gpumagic.results.devices import Device
from gpumagic.selection import claims
from gpumagic.selection.auto import pick
from gpumagic.selection.table import devices
from gpumagic.system import system_files
assert not {{"torch", "IPython", "pynvml"}} & sys.modules.keys()
UUIDS = {UUIDS!r}
DEVICES = [Device(n, uuid=uuid, memory_free=10) for n, uuid in enumerate(UUIDS)]

def auto(count=1):
    chosen = claims.claim_best(lambda others: pick(DEVICES, count, others=others), UUIDS)
    claims.hold(chosen)
    return chosen

def become(uid):
    if uid:
        os.setgroups([]), os.setgid(uid), os.setuid(uid)

def say(what=""):
    print(json.dumps(what), flush=True)
"""


@contextmanager
def process(source: str) -> Iterator[Any]:
    """A process that runs this, says something, and waits to be killed; what it says, and it."""
    one = subprocess.Popen(
        [sys.executable, "-c", f"{_PROGRAM}{source}\ninput()"],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert one.stdout is not None
        yield json.loads(one.stdout.readline()), one
    finally:
        one.kill()
        one.communicate()


def auto(count: int = 1) -> tuple[str, ...]:
    """What ``auto`` takes of eight equal GPUs."""
    devices = [Device(n, uuid=uuid, memory_free=10) for n, uuid in enumerate(UUIDS)]
    chosen = claims.claim_best(lambda others: pick(devices, count, others=others), UUIDS)
    claims.hold(chosen)
    return chosen


def pids(uuid: str) -> list[int | None]:
    return [claim.pid for claim in claims.all_of([uuid], claims.locked())[uuid]]


_MANY = """
def together(uids):
    ready, go, done, answers = os.pipe(), os.pipe(), os.pipe(), os.pipe()
    for uid in uids:
        if not os.fork():
            os.close(go[1]), os.close(done[1])
            become(uid)
            os.write(ready[1], b".")
            os.read(go[0], 1)  # returns when the writing end is closed
            os.write(answers[1], json.dumps([os.getpid(), *auto()]).encode() + b"\\n")
            os.read(done[0], 1)
            os._exit(0)
    for _ in uids:
        os.read(ready[0], 1)
    os.close(go[1])
    file = os.fdopen(answers[0])
    return [json.loads(file.readline()) for _ in uids]
"""


@pytest.mark.parametrize("number", [8, 40])
def test_processes_that_choose_at_once_are_spread_over_the_gpus(machine: Path, number: int) -> None:
    """Of three users, if this one is root; each is listed."""
    uids = [60_000 + n % 3 if os.geteuid() == 0 else 0 for n in range(number)]
    with process(f"{_MANY}say(together({uids}))") as (chosen, _):
        listed = claims.all_of(UUIDS, claims.locked())
        counts = Counter(uuid for _, uuid in chosen)
        for uuid, found in listed.items():  # of many on one GPU the last ones are a number
            by_pid = {each.pid for each in found if each.pid is not None}
            assert by_pid <= {pid for pid, its in chosen if its == uuid}
            assert sum(each.processes for each in found) == counts[uuid]
        assert counts.keys() == {*UUIDS}
        assert max(counts.values()) == 1 or number > 8
        users = {each.user for found in listed.values() for each in found} - {None}
        assert len(users) == len({*uids})


def test_a_claimed_gpu_comes_last_and_a_claim_ends_with_its_process(machine: Path) -> None:
    with process("say(auto())") as ([first], other):
        assert first == UUIDS[0]
        assert auto() == (UUIDS[1],)
        assert pids(UUIDS[0]) == [other.pid]
        assert auto(8) == (*UUIDS[1:], UUIDS[0])  # all are needed
        assert pids(UUIDS[0]) == [os.getpid(), other.pid]
        own = claims.all_of(UUIDS, claims.locked())[UUIDS[1]]
        assert [(c.own, c.mine) for c in own] == [(True, True)]
        claims.release()
        assert pids(UUIDS[0]) == [other.pid]
        other.kill()
        other.wait()
        assert pids(UUIDS[0]) == []
    assert auto() == (UUIDS[0],)


def test_a_fork_does_not_keep_its_parents_claim(machine: Path) -> None:
    fork = "auto()\nif os.fork():\n    os._exit(0)\nassert claims.held() == ()\nsay()"
    with process(fork) as (_, other):
        other.wait()
        assert pids(UUIDS[0]) == []


def test_a_claim_goes_on_in_the_program_that_replaces_its_process(machine: Path) -> None:
    """And only there: a child that has inherited the variable claims nothing."""
    after = (
        f"{_PROGRAM}\nassert not claims._INHERITED in os.environ\n"
        "claims.hold((UUIDS[3],))\nsay()\ninput()"
    )
    source = (
        "claims.hold(tuple(UUIDS[2:4]))\nenvironment = dict(os.environ)\n"
        "claims.pass_on(environment)\nimport subprocess\n"
        "check = 'from gpumagic.selection import claims; assert not claims._descriptors'\n"
        "subprocess.run([sys.executable, '-c', check], env=environment, check=True)\n"
        f"os.execve(sys.executable, [sys.executable, '-c', {after!r}], environment)"
    )
    with process(source) as (_, other):
        assert pids(UUIDS[3]) == [other.pid]
        assert pids(UUIDS[2]) == []


def test_thousands_of_claims_cost_little(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each process is looked up once, and of a GPU's no more than 16; the others are counted."""
    looked_up: list[int] = []
    claim_of = claims._claim

    def counted(pid: int) -> Any:
        looked_up.append(pid)
        return claim_of(pid)

    monkeypatch.setattr(claims, "_claim", counted)
    claims.hold((UUIDS[0],))
    uids = [60_000 if os.geteuid() == 0 else 0] * 60
    program = _MANY.replace("*auto()", "*take()") + (
        "def take():\n    claims.hold(tuple(UUIDS))\n    return claims.held()\n"
    )
    with process(f"{program}say(together({uids}))"):
        found = claims.all_of(UUIDS, claims.locked())
        assert len(looked_up) == len({*looked_up}) <= 16
        for uuid, listed in found.items():
            assert listed[0].own == (uuid == UUIDS[0])
            assert sum(claim.processes for claim in listed) == 60 + listed[0].own
            more = listed[-1].processes
            assert str(listed[-1]) == f"{more} more processes"


def test_of_a_process_in_another_container_only_the_lock_is_seen(
    machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with process("say(auto())"):
        monkeypatch.setattr(claims, "locked", dict)
        assert auto() == (UUIDS[1],)


@pytest.mark.parametrize("uuid", [UUIDS[0], INSTANCE])
def test_a_file_in_shared_memory_where_the_kernel_lists_nothing(
    shared_folder: Path, machine: Path, uuid: str
) -> None:
    """As on WSL; and for MIG instances. It is made for every user, whatever the umask."""
    for file in machine.glob("proc/driver/nvidia/gpus/*/information"):
        file.unlink()
    uid = UID if os.geteuid() == 0 else 0
    with process(f"os.umask(0o077)\nclaims.hold(({uuid!r},))\nsay()") as (_, other):
        (file,) = (machine / "dev/shm").iterdir()
        assert (file.read_bytes(), file.stat().st_mode & 0o777) == (b"", 0o444)
        source = f"become({uid})\nclaims.hold(({uuid!r},))\nsay(claims.held())"
        with process(source) as (claim, second):
            assert claim == [uuid]
            assert pids(uuid) == sorted([other.pid, second.pid])


def test_where_nothing_can_be_locked_the_choice_is_made_without(machine: Path) -> None:
    for file in machine.glob("proc/driver/nvidia/gpus/*/information"):
        file.unlink()
    (machine / "dev/shm").rmdir()
    assert auto() == (UUIDS[0],)
    assert claims.held() == ()


@needs_root
def test_a_file_that_its_owner_lets_nobody_read_is_named(machine: Path) -> None:
    path = machine / f"dev/shm/gpumagic-{INSTANCE}"
    path.touch(mode=0o600)
    with process(f"become({UID})\nsay(claims.hold(({INSTANCE!r},)))") as (failed, _):
        assert str(path) in failed[INSTANCE]


def test_whole_devices_and_instances_are_listed_at_their_gpu(
    monkeypatch: pytest.MonkeyPatch, machine: Path
) -> None:
    divided = Device(0, uuid=UUIDS[0], mig=(MigInstance(INSTANCE),))
    table = DeviceTable((divided, Device(1, uuid=UUIDS[1])))
    monkeypatch.setattr(device_table, "read", lambda **_: table)
    claims.hold((INSTANCE, UUIDS[1]))
    first, second = devices()
    assert [(c.own, c.instance) for c in first.claims] == [(True, INSTANCE)]
    assert [(c.own, c.instance) for c in second.claims] == [(True, None)]


def test_the_table_while_the_interpreter_ends() -> None:
    """Threads can no longer be started then."""
    program = "import atexit, gpumagic; gpumagic.devices()\n"
    program += "atexit.register(lambda: print(len(gpumagic.devices())))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.stdout.strip(), done.stderr) == (str(len(devices())), "")
