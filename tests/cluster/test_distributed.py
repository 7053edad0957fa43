"""The part of ``torch.distributed`` on the engines: addresses, the store, the barrier."""

from __future__ import annotations

import errno
import os
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from gpumagic.cluster import distributed
from gpumagic.errors import DeviceError
from tests.support.clusters import Cluster
from tests.support.other_user import run_as_other_user
from tests.support.shells import Ran

Run = Callable[..., Ran]


def test_ranks_by_engine_and_host() -> None:
    planned = distributed.plan({4: "a", 0: "b", 2: "a"})
    assert {engine: (p["rank"], p["local_rank"]) for engine, p in planned.items()} == {
        0: (0, 0),
        2: (1, 0),
        4: (2, 1),
    }
    assert {p["world_size"] for p in planned.values()} == {3}
    assert [planned[e]["local_world_size"] for e in (0, 2, 4)] == [1, 2, 2]


@pytest.mark.skipif(sys.platform != "linux", reason="a question to Linux")
def test_the_interface_of_an_address() -> None:
    assert distributed._interface(distributed._own_address("127.0.0.1")) == "lo"
    assert distributed._interface("192.0.2.1") is None
    assert distributed._interface(None) is None


def test_addresses_for_other_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    assert distributed._address(()) == "127.0.0.1"
    # A name for loopback, as in many hosts files, cannot be reached from other hosts.
    monkeypatch.setattr("socket.getaddrinfo", lambda *_: [(0, 0, 0, "", ("127.0.1.1", 0))])
    with pytest.raises(DeviceError, match="knows no address by which localhost could reach it"):
        distributed._address(("localhost",))
    monkeypatch.setattr("socket.getaddrinfo", lambda *_: [(0, 0, 0, "", ("10.1.2.3", 0))])
    assert distributed._address(("localhost",)) == "10.1.2.3"


def listening(cluster: Cluster) -> set[str]:
    """The addresses on which the engines can be reached."""
    found = set()
    for engine in cluster.engines:
        process = psutil.Process(engine.pid)
        ask = getattr(process, "net_connections", None) or process.connections
        found |= {each.laddr.ip for each in ask("tcp") if each.status == psutil.CONN_LISTEN}
    return found


@pytest.mark.skipif(sys.platform == "win32", reason="no such permissions")
def test_other_users_and_hosts_cannot_join(grouped_engines: Cluster, run: Run) -> None:
    """Not from another host, and not as another user of this one: the store is private."""
    store = "__import__('gpumagic.cluster.distributed', fromlist=['r'])._rendezvous['folder'].name"
    folder = Path(grouped_engines.value(0, store))
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert listening(grouped_engines) <= {"127.0.0.1"}  # gloo's own
    if os.geteuid() == 0:
        file = str(folder / "store")
        port = grouped_engines.value(0, "__import__('os').environ['MASTER_PORT']")
        said = run_as_other_user(
            f"try: open({file!r}); print('read')\nexcept PermissionError: print('refused')\n"
            f"print(socket.socket().connect_ex(('127.0.0.1', {port})))",
            imports="os, socket, codecs",
        )
        assert said.split() == ["refused", str(errno.ECONNREFUSED)]
    run(grouped_engines, "%gpu dist down -q")
    assert not folder.exists()


def test_a_rank_that_does_not_come(grouped_engines: Cluster, run: Run) -> None:
    """It is named, and the next barrier works."""
    grouped_engines.run(0, "import gpumagic.cluster.distributed as r; r._BARRIER_TIMEOUT = 0.5")
    grouped_engines.run(
        1, "import gpumagic.cluster.distributed as r; real = r.barrier; r.barrier = lambda: True"
    )
    run(grouped_engines, "%%cudatime --cluster -v timing\n1", raising=False)
    failed = run(grouped_engines, "timing").value.failed
    assert failed == {0: "UsageError: rank 1 did not reach the barrier in 0.5 s"}
    grouped_engines.run(0, "r._BARRIER_TIMEOUT = 20.0")
    grouped_engines.run(1, "r.barrier = real")
    assert not run(grouped_engines, "%%cudatime --cluster --barrier -o -q\n1").value.failed


def test_a_barrier_without_its_store() -> None:
    class Gone:
        def add(self, *_: object) -> int:
            raise RuntimeError("Connection reset by peer")

    group = SimpleNamespace(
        get_rank=lambda: 1,
        get_world_size=lambda: 2,
        distributed_c10d=SimpleNamespace(_get_default_store=Gone),
    )
    with pytest.raises(DeviceError, match="store does not answer: has rank 0 ended"):
        distributed._wait_for_ranks(group)


def test_a_rank_that_dies_before_the_barrier(cluster_of: Callable[..., Cluster], run: Run) -> None:
    cluster = cluster_of(2)
    run(cluster, "%gpu off --cluster -q")
    run(cluster, "%gpu dist init -q")
    die = "r.barrier = lambda: os.kill(os.getpid(), 9)"
    cluster.run(1, f"import gpumagic.cluster.distributed as r, os; {die}")
    cluster.run(0, "import gpumagic.cluster.distributed as r; r._BARRIER_TIMEOUT = 1000.0")
    run(cluster, "%%cudatime --cluster -v timing\n1", raising=False)
    failed = run(cluster, "timing").value.failed
    assert failed[1] == "the engine died"
    assert failed[0].startswith("KeyboardInterrupt")
    assert cluster.value(0, "1") == 1


def test_only_the_masters_host_needs_an_address(two_engines: Cluster, run: Run) -> None:
    run(two_engines, "%gpu off --cluster -q")
    two_engines.run(
        0, "import gpumagic.cluster.distributed as r; r._address = lambda other_hosts: '127.0.0.1'"
    )
    two_engines.run(
        1,
        "import socket, gpumagic.cluster.distributed as r\n"
        "socket.gethostname = lambda: 'elsewhere'\n"
        "def address(other_hosts):\n"
        "    if other_hosts: raise r.DeviceError('knows no address')\n"
        "    return '127.0.0.1'\n"
        "r._address = address",
    )
    group = run(two_engines, "%gpu dist init -o -q").value
    assert dict(group.ranks) == {0: 0, 1: 1}, group.failed
    assert group.master.startswith("127.0.0.1:")
    assert listening(two_engines) == {"127.0.0.1"}  # torch's store would listen on every address
    assert two_engines.value(1, "__import__('os').environ['LOCAL_RANK']") == "0"
    if sys.platform == "linux":  # the interface by which they have met
        assert two_engines.value(1, "__import__('os').environ['GLOO_SOCKET_IFNAME']") == "lo"
    run(two_engines, "%gpu dist down -q")
    assert "GLOO_SOCKET_IFNAME" not in two_engines.value(1, "dict(__import__('os').environ)")


def test_a_rank_that_comes_when_the_first_has_given_up(
    two_engines: Cluster, run: Run, tmp_path: Path
) -> None:
    """torch waits five minutes for a file in a folder that is gone, and nothing interrupts it."""
    run(two_engines, "%gpu off --cluster -q")
    flag = tmp_path / "given up"
    two_engines.run(
        0,
        "import gpumagic.cluster.distributed as r, pathlib; real = r.join\n"
        "def join(**given):\n"
        "    try: return real(**given)\n"
        f"    finally: pathlib.Path({str(flag)!r}).touch()\n"
        "r.join = join",
    )
    two_engines.run(
        1,
        "import gpumagic.cluster.distributed as r, pathlib, time; real = r.join\n"
        "def join(**given):\n"
        f"    while not pathlib.Path({str(flag)!r}).exists(): time.sleep(0.01)\n"
        "    return real(**given)\n"
        "r.join = join",
    )
    group = run(two_engines, "%gpu dist init --backend gloom -o -q").value
    refused = "torch refuses: Unknown backend type gloom"
    assert dict(group.failed) == {0: refused, 1: refused}
    assert two_engines.value(0, "r._rendezvous") == {}
    given = {
        **{"backend": "gloo", "master": ("127.0.0.1", 1), "file": str(tmp_path / "gone" / "store")},
        **{"rank": 1, "world_size": 2, "local_rank": 1, "local_world_size": 2, "timeout": 60.0},
    }
    two_engines.run(
        1,
        f"try: real(**{given!r})\nexcept r.DeviceError as error: said = str(error)",
    )
    assert two_engines.value(1, "said") == "the other ranks have given up"
    assert two_engines.value(1, "'RANK' in __import__('os').environ") is False


def test_a_barrier_when_the_store_is_gone(grouped_engines: Cluster, run: Run) -> None:
    """The first rank has left; torch waits for the file for half an hour."""
    run(grouped_engines, "%gpu dist down -t 0 -q")
    grouped_engines.run(
        1,
        "import gpumagic.cluster.distributed as r\n"
        "try: r.barrier()\nexcept r.DeviceError as error: said = str(error)",
    )
    assert "store does not answer: has rank 0 ended" in grouped_engines.value(1, "said")
    assert run(grouped_engines, "%gpu dist down -q").value is None


def test_the_store_outlasts_the_last_rank(
    grouped_engines: Cluster, run: Run, tmp_path: Path
) -> None:
    """It writes to it when it leaves, and would wait for a directory that is gone."""
    flag, gpumagics = tmp_path / "left", "import gpumagic.cluster.distributed as r, pathlib, time\n"
    grouped_engines.run(
        0,
        f"{gpumagics}real = r.leave\n"
        "def leave():\n"
        "    try: return real()\n"
        f"    finally: pathlib.Path({str(flag)!r}).touch()\n"
        "r.leave = leave",
    )
    grouped_engines.run(
        1,
        f"{gpumagics}real = r.leave\n"
        "def leave():\n"
        f"    while not pathlib.Path({str(flag)!r}).exists(): time.sleep(0.01)\n"
        "    global found; found = pathlib.Path(r._rendezvous['file']).parent.is_dir()\n"
        "    return real()\n"
        "r.leave = leave",
    )
    assert "2 ranks left the process group" in run(grouped_engines, "%gpu dist down").text
    assert grouped_engines.value(1, "found") is True
    assert [grouped_engines.value(i, "r._rendezvous") for i in (0, 1)] == [{}, {}]


def test_nccl_where_there_are_gpus(two_engines: Cluster) -> None:
    """The condition of ``--backend auto``; NCCL itself needs real GPUs."""
    source = "__import__('gpumagic.cluster.distributed', fromlist=['r']).rendezvous(())[2]"
    assert two_engines.value(0, source) is True
    two_engines.renew()
    two_engines.run(0, "import os; os.environ['CUDA_VISIBLE_DEVICES'] = ''")
    assert two_engines.value(0, source) is False
