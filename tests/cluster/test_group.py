"""``torch.distributed`` over the engines, and training on it as PyTorch's documents write it."""

from __future__ import annotations

import errno
import os
import stat
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from IPython.core.error import UsageError

from gpumagic.cluster import distributed
from gpumagic.cluster.cell_run import Outcome
from gpumagic.cluster.engine import Place
from gpumagic.errors import DeviceError
from gpumagic.results import ProcessGroup
from tests.support.clusters import Cluster
from tests.support.other_user import run_as_other_user
from tests.support.shells import Ran

Run = Callable[..., Ran]

TRAIN = """\
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(4, 1))
data = TensorDataset(torch.arange(64.0).reshape(16, 4), torch.ones(16, 1))
loader = DataLoader(data, batch_size=4, sampler=DistributedSampler(data))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
for inputs, targets in loader:
    optimizer.zero_grad()
    torch.nn.functional.mse_loss(model(inputs), targets).backward()
    optimizer.step()
weights = model.module.weight.tolist()
seen = len(loader)
"""


@pytest.fixture
def joined(two: Cluster, run: Run) -> Cluster:
    run(two, "%gpu off --cluster -q")
    run(two, "%gpu dist init -q")
    return two


def test_a_group_is_made_and_ended(two: Cluster, run: Run) -> None:
    assert "no process group; %gpu dist init creates one" in run(two, "%gpu dist").text
    run(two, "%gpu off --cluster -q")
    ran = run(two, "group = %gpu dist init -o")
    group = run(two, "group").value
    assert isinstance(group, ProcessGroup)
    assert dict(group.ranks) == {0: 0, 1: 1}
    assert group.world_size == 2
    assert group.backend == "gloo"  # there is no GPU to use
    assert group.master is None  # on one host they meet in a file
    assert "process group: 2 ranks, backend gloo" in ran.text
    for engine in (0, 1):
        environment = two.value(engine, "dict(__import__('os').environ)")
        assert environment["RANK"] == environment["LOCAL_RANK"] == str(engine)
        assert environment["WORLD_SIZE"] == environment["LOCAL_WORLD_SIZE"] == "2"
        assert environment["MASTER_ADDR"] == "127.0.0.1"
        assert environment["MASTER_PORT"] == two.value(0, "__import__('os').environ['MASTER_PORT']")
    shown = run(two, "%gpu dist -o").value
    assert (dict(shown.ranks), shown.backend) == ({0: 0, 1: 1}, "gloo")
    table = run(two, "%gpu cluster -o -q").value
    assert [(each.rank, each.world_size) for each in table] == [(0, 2), (1, 2)]
    with pytest.raises(UsageError) as raised:
        run(two, "%gpu dist init")
    assert str(raised.value) == (
        "engine 0: it is in a process group already: %gpu dist down first; "
        "no process group was made"
    )
    assert run(two, "%gpu dist -o -q").value.world_size == 2
    assert "2 ranks left the process group" in run(two, "%gpu dist down").text
    assert "RANK" not in two.value(0, "dict(__import__('os').environ)")
    assert "there was no process group" in run(two, "%gpu dist down").text


def listening(cluster: Cluster) -> set[str]:
    """The addresses on which the engines can be reached."""
    found = set()
    for engine in cluster.engines:
        process = psutil.Process(engine.pid)
        ask = getattr(process, "net_connections", None) or process.connections
        found |= {each.laddr.ip for each in ask("tcp") if each.status == psutil.CONN_LISTEN}
    return found


@pytest.mark.skipif(sys.platform == "win32", reason="no such permissions")
def test_nobody_else_can_take_part(joined: Cluster, run: Run) -> None:
    """Not from another host, and not as another user of this one, who is let in to no store."""
    store = "__import__('gpumagic.cluster.distributed', fromlist=['r'])._meeting['folder'].name"
    folder = Path(joined.value(0, store))
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert listening(joined) <= {"127.0.0.1"}  # gloo's own
    if os.geteuid() == 0:
        file = str(folder / "store")
        port = joined.value(0, "__import__('os').environ['MASTER_PORT']")
        said = run_as_other_user(
            f"try: open({file!r}); print('read')\nexcept PermissionError: print('refused')\n"
            f"print(socket.socket().connect_ex(('127.0.0.1', {port})))",
            imports="os, socket, codecs",
        )
        assert said.split() == ["refused", str(errno.ECONNREFUSED)]
    run(joined, "%gpu dist down -q")
    assert not folder.exists()


def test_training_as_in_the_documents(joined: Cluster, run: Run) -> None:
    ran = run(joined, f"%%cudatime --cluster -v timing\n{TRAIN}")
    timing = run(joined, "timing").value
    assert not timing.failed, ran.stderr
    assert timing.barrier
    assert [each.rank for each in timing.engines] == [0, 1]
    assert "the ranks started together, after a barrier" in ran.text
    # Each saw its half of the data, and all have the same model.
    assert joined.value(0, "seen") == joined.value(1, "seen") == 2
    assert joined.value(0, "weights") == joined.value(1, "weights")
    # Not the model that was started with: it has learned.
    fresh = "__import__('torch').manual_seed(0) and __import__('torch').nn.Linear(4, 1)"
    assert joined.value(0, f"({fresh}).weight.tolist()") != joined.value(0, "weights")


def test_ranks_start_together(joined: Cluster, run: Run) -> None:
    """One reaches the cell half a second late: no one's clock counts that."""
    late = joined.client[1].execute("import time; time.sleep(0.7)", block=False)
    # The engines are asked beforehand whether they are there: only then does one get its work.
    timing = run(joined, "%%cudatime --cluster -o -q\nimport time\ntime.sleep(0.05)").value
    late.get(timeout=20)
    assert timing.wall.best >= 0.05
    barred = run(joined, "%cudatime --cluster -t 0 -o -q 1").value
    assert not barred.barrier  # a part of the ranks must not wait for the others


def test_a_rank_that_does_not_come(joined: Cluster, run: Run) -> None:
    """It is named, and the next barrier is one again."""
    joined.run(0, "import gpumagic.cluster.distributed as r; r._PATIENCE = 0.5")
    joined.run(
        1, "import gpumagic.cluster.distributed as r; real = r.barrier; r.barrier = lambda: True"
    )
    run(joined, "%%cudatime --cluster -v timing\n1", raising=False)
    failed = run(joined, "timing").value.failed
    assert failed == {0: "UsageError: rank 1 did not come to the barrier in 0.5 s"}
    joined.run(0, "r._PATIENCE = 20.0")
    joined.run(1, "r.barrier = real")
    assert not run(joined, "%%cudatime --cluster --barrier -o -q\n1").value.failed


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
        distributed._come_together(group)


def test_a_rank_that_dies_before_the_barrier(cluster_of: Callable[..., Cluster], run: Run) -> None:
    cluster = cluster_of(2)
    run(cluster, "%gpu off --cluster -q")
    run(cluster, "%gpu dist init -q")
    die = "r.barrier = lambda: os.kill(os.getpid(), 9)"
    cluster.run(1, f"import gpumagic.cluster.distributed as r, os; {die}")
    cluster.run(0, "import gpumagic.cluster.distributed as r; r._PATIENCE = 1000.0")
    run(cluster, "%%cudatime --cluster -v timing\n1", raising=False)
    failed = run(cluster, "timing").value.failed
    assert failed[1] == "the engine died"
    assert failed[0].startswith("KeyboardInterrupt")
    assert cluster.value(0, "1") == 1


def test_ranks_must_run_equally_often(joined: Cluster, run: Run) -> None:
    """Else one waits in a collective that the others do not call."""
    for options in (
        *("-r 3", "--repeat", "-n 5 -r 3", "--kernels", "-n 5 -r 3 -w 1 --queued", "-qsx=1"),
        *("--precision=1%", "--max-time 1s", "--max-time=1s", '-n 5 -r 3 -s "a -w b"'),
    ):
        with pytest.raises(UsageError, match="must run the code equally often"):
            run(joined, f"%cudatime --cluster {options} 1")
    alike = "%cudatime --cluster -o -q -n 3 -r 2 -w 1 __import__('torch').distributed.barrier()"
    timing = run(joined, alike).value
    assert {one.repeat for one in timing.per_engine.values()} == {2}


def test_a_silent_rank_stops_all(
    joined: Cluster, run: Run, busy: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its group would wait for it."""
    run(joined, "%gpu cluster -q")
    monkeypatch.setattr("gpumagic.cluster.cell_run._BEGIN_TIMEOUT", 3.0)
    with (
        busy(joined, 1),
        pytest.raises(UsageError, match=r"engine 1: no answer .* nothing was run"),
    ):
        run(joined, "%%cudatime --cluster\n1")


def test_ranks_of_one_gpu_do_not_get_nccl(two: Cluster, run: Run) -> None:
    group = run(two, "%gpu dist init -o -q").value
    assert group.backend == "gloo"
    assert group.notes == (
        "gloo, since ranks would share a GPU, which nccl refuses: %gpu pin first",
    )
    run(two, "%gpu dist down -q")
    run(two, "%gpu pin -q")
    group = run(two, "%gpu dist init --backend gloo -o -q").value
    assert group.notes == (
        "pinned engines see their GPU as cuda:0: LOCAL_RANK is no device index there",
    )


def test_a_part_of_the_engines(two: Cluster, run: Run) -> None:
    run(two, "%gpu off --cluster -q")
    group = run(two, "%gpu dist init -t 1 -o -q").value
    assert dict(group.ranks) == {1: 0}
    assert run(two, "%gpu cluster -o -q").value[0].rank is None
    run(two, "%gpu dist down -q")


def test_ranks_of_two_groups_are_no_group() -> None:
    def together(*masters: str) -> bool:
        places = {
            engine: Place("h", engine, rank=engine, world_size=2, master=master)
            for engine, master in enumerate(masters)
        }
        return Outcome(places=places).is_one_group

    assert together("a:1", "a:1")
    assert not together("a:1", "a:2")


def test_only_the_masters_host_needs_an_address(two: Cluster, run: Run) -> None:
    run(two, "%gpu off --cluster -q")
    two.run(
        0, "import gpumagic.cluster.distributed as r; r._address = lambda other_hosts: '127.0.0.1'"
    )
    two.run(
        1,
        "import socket, gpumagic.cluster.distributed as r\n"
        "socket.gethostname = lambda: 'elsewhere'\n"
        "def address(other_hosts):\n"
        "    if other_hosts: raise r.DeviceError('knows no address')\n"
        "    return '127.0.0.1'\n"
        "r._address = address",
    )
    group = run(two, "%gpu dist init -o -q").value
    assert dict(group.ranks) == {0: 0, 1: 1}, group.failed
    assert group.master.startswith("127.0.0.1:")
    assert listening(two) == {"127.0.0.1"}  # torch's store would listen on every address
    assert two.value(1, "__import__('os').environ['LOCAL_RANK']") == "0"
    if sys.platform == "linux":  # the interface by which they have met
        assert two.value(1, "__import__('os').environ['GLOO_SOCKET_IFNAME']") == "lo"
    run(two, "%gpu dist down -q")
    assert "GLOO_SOCKET_IFNAME" not in two.value(1, "dict(__import__('os').environ)")


def test_a_backend_that_is_none(two: Cluster, run: Run) -> None:
    run(two, "%gpu off --cluster -q")
    group = run(two, "%gpu dist init --backend gloom -o -q").value
    assert group.world_size == 0
    assert all("torch refuses" in reason for reason in group.failed.values()), group.failed
    assert two.value(0, "'RANK' in __import__('os').environ") is False


def test_a_rank_that_comes_when_the_first_has_given_up(
    two: Cluster, run: Run, tmp_path: Path
) -> None:
    """torch waits five minutes for a file in a folder that is gone, and nothing interrupts it."""
    run(two, "%gpu off --cluster -q")
    flag = tmp_path / "given up"
    two.run(
        0,
        "import gpumagic.cluster.distributed as r, pathlib; real = r.join\n"
        "def join(**given):\n"
        "    try: return real(**given)\n"
        f"    finally: pathlib.Path({str(flag)!r}).touch()\n"
        "r.join = join",
    )
    two.run(
        1,
        "import gpumagic.cluster.distributed as r, pathlib, time; real = r.join\n"
        "def join(**given):\n"
        f"    while not pathlib.Path({str(flag)!r}).exists(): time.sleep(0.01)\n"
        "    return real(**given)\n"
        "r.join = join",
    )
    group = run(two, "%gpu dist init --backend gloom -o -q").value
    refused = "torch refuses: Unknown backend type gloom"
    assert dict(group.failed) == {0: refused, 1: refused}
    assert two.value(0, "r._meeting") == {}
    given = {
        **{"backend": "gloo", "master": ("127.0.0.1", 1), "file": str(tmp_path / "gone" / "store")},
        **{"rank": 1, "world_size": 2, "local_rank": 1, "local_world_size": 2, "timeout": 60.0},
    }
    two.run(
        1,
        f"try: real(**{given!r})\nexcept r.DeviceError as error: said = str(error)",
    )
    assert two.value(1, "said") == "the other ranks have given up"
    assert two.value(1, "'RANK' in __import__('os').environ") is False


def test_a_barrier_when_the_store_is_gone(joined: Cluster, run: Run) -> None:
    """The first rank has left; torch waits for the file for half an hour."""
    run(joined, "%gpu dist down -t 0 -q")
    joined.run(
        1,
        "import gpumagic.cluster.distributed as r\n"
        "try: r.barrier()\nexcept r.DeviceError as error: said = str(error)",
    )
    assert "store does not answer: has rank 0 ended" in joined.value(1, "said")
    assert run(joined, "%gpu dist down -q").value is None


def test_a_rank_that_fails_holds_up_nobody(two: Cluster, run: Run) -> None:
    run(two, "%gpu off --cluster -q")
    two.run(0, "import torch")
    two.run(1, "import torch, os; os.environ['GLOO_SOCKET_IFNAME'] = 'nonexist0'")
    started = time.monotonic()
    group = run(two, "%gpu dist init --timeout 3s -o -q").value
    assert time.monotonic() - started < 120  # torch's own limit is half an hour
    assert group.world_size == 0
    assert "nonexist0" in group.failed[1]
    assert group.failed[0].startswith("torch refuses")
    for engine in (0, 1):
        environment = two.value(engine, "dict(__import__('os').environ)")
        assert "RANK" not in environment
        assert two.value(engine, "__import__('torch').distributed.is_initialized()") is False
    two.run(1, "del os.environ['GLOO_SOCKET_IFNAME']")
    assert run(two, "%gpu dist init --timeout 30s -o -q").value.world_size == 2
    # The limit was for the meeting: later the group's store has torch's own.
    limit = "__import__('torch').distributed.distributed_c10d._get_default_store().timeout"
    assert two.value(0, limit).total_seconds() == 1800


def test_nccl_where_there_are_gpus(two: Cluster) -> None:
    """What ``--backend auto`` goes by; NCCL itself needs real GPUs."""
    source = "__import__('gpumagic.cluster.distributed', fromlist=['r']).rendezvous(())[2]"
    assert two.value(0, source) is True
    two.renew()
    two.run(0, "import os; os.environ['CUDA_VISIBLE_DEVICES'] = ''")
    assert two.value(0, source) is False


def test_the_memory_of_all_ranks(joined: Cluster, run: Run) -> None:
    ran = run(joined, "%%gpumem --cluster -o\nx = 1")
    assert [each.rank for each in ran.value.engines] == [0, 1]
    assert "Rank" in ran.text
