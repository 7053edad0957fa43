"""A ``torch.distributed`` process group of the engines, and training in it as documented."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from IPython.core.error import UsageError

from gpumagic.results import (
    ProcessGroup,
)
from tests.support.clusters import Cluster
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


def test_a_group_is_made_and_ended(two_engines: Cluster, run: Run) -> None:
    assert "no process group; %gpu dist init creates one" in run(two_engines, "%gpu dist").text
    run(two_engines, "%gpu off --cluster -q")
    ran = run(two_engines, "group = %gpu dist init -o")
    group = run(two_engines, "group").value
    assert isinstance(group, ProcessGroup)
    assert dict(group.ranks) == {0: 0, 1: 1}
    assert group.world_size == 2
    assert group.backend == "gloo"  # there is no GPU to use
    assert group.master is None  # on one host they meet in a file
    assert "process group: 2 ranks, backend gloo" in ran.text
    for engine in (0, 1):
        environment = two_engines.value(engine, "dict(__import__('os').environ)")
        assert environment["RANK"] == environment["LOCAL_RANK"] == str(engine)
        assert environment["WORLD_SIZE"] == environment["LOCAL_WORLD_SIZE"] == "2"
        assert environment["MASTER_ADDR"] == "127.0.0.1"
        assert environment["MASTER_PORT"] == two_engines.value(
            0, "__import__('os').environ['MASTER_PORT']"
        )
    shown = run(two_engines, "%gpu dist -o").value
    assert (dict(shown.ranks), shown.backend) == ({0: 0, 1: 1}, "gloo")
    table = run(two_engines, "%gpu cluster -o -q").value
    assert [(each.rank, each.world_size) for each in table] == [(0, 2), (1, 2)]
    with pytest.raises(UsageError) as raised:
        run(two_engines, "%gpu dist init")
    assert str(raised.value) == (
        "engine 0: it is in a process group already: %gpu dist down first; "
        "no process group was made"
    )
    assert run(two_engines, "%gpu dist -o -q").value.world_size == 2
    assert "2 ranks left the process group" in run(two_engines, "%gpu dist down").text
    assert "RANK" not in two_engines.value(0, "dict(__import__('os').environ)")
    assert "there was no process group" in run(two_engines, "%gpu dist down").text


def test_bad_input(two_engines: Cluster, run: Run) -> None:
    with pytest.raises(UsageError, match="write %gpu dist init, or %gpu dist down"):
        run(two_engines, "%gpu dist up")


def test_training_as_in_the_documents(grouped_engines: Cluster, run: Run) -> None:
    ran = run(grouped_engines, f"%%cudatime --cluster -v timing\n{TRAIN}")
    timing = run(grouped_engines, "timing").value
    assert not timing.failed, ran.stderr
    assert timing.barrier
    assert [each.rank for each in timing.engines] == [0, 1]
    assert "the ranks started together, after a barrier" in ran.text
    # Each saw its half of the data, and all have the same model.
    assert grouped_engines.value(0, "seen") == grouped_engines.value(1, "seen") == 2
    assert grouped_engines.value(0, "weights") == grouped_engines.value(1, "weights")
    # Not the model that was started with: it has learned.
    fresh = "__import__('torch').manual_seed(0) and __import__('torch').nn.Linear(4, 1)"
    assert grouped_engines.value(0, f"({fresh}).weight.tolist()") != grouped_engines.value(
        0, "weights"
    )


def test_ranks_start_together(grouped_engines: Cluster, run: Run) -> None:
    """One reaches the cell half a second late: no clock counts that."""
    late = grouped_engines.client[1].execute("import time; time.sleep(0.7)", block=False)
    # The engines are asked beforehand whether they are there: only then does one get its work.
    timing = run(grouped_engines, "%%cudatime --cluster -o -q\nimport time\ntime.sleep(0.05)").value
    late.get(timeout=300)
    assert timing.wall.best >= 0.05
    barred = run(grouped_engines, "%cudatime --cluster -t 0 -o -q 1").value
    assert not barred.barrier  # a part of the ranks must not wait for the others


def test_ranks_must_run_equally_often(grouped_engines: Cluster, run: Run) -> None:
    """Else one waits in a collective that the others do not call."""
    for options in (
        *("-r 3", "--repeat", "-n 5 -r 3", "--kernels", "-n 5 -r 3 -w 1 --queued", "-qsx=1"),
        *("--precision=1%", "--max-time 1s", "--max-time=1s", '-n 5 -r 3 -s "a -w b"'),
    ):
        with pytest.raises(UsageError, match="must run the code equally often"):
            run(grouped_engines, f"%cudatime --cluster {options} 1")
    alike = "%cudatime --cluster -o -q -n 3 -r 2 -w 1 __import__('torch').distributed.barrier()"
    timing = run(grouped_engines, alike).value
    assert {one.repeat for one in timing.per_engine.values()} == {2}


def test_a_silent_rank_stops_all(
    grouped_engines: Cluster, run: Run, busy_engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its group would wait for it."""
    run(grouped_engines, "%gpu cluster -q")
    monkeypatch.setattr("gpumagic.cluster.cell_run._BEGIN_TIMEOUT", 10.0)
    with (
        busy_engine(grouped_engines, 1),
        pytest.raises(UsageError, match=r"engine 1: no answer .* nothing was run"),
    ):
        run(grouped_engines, "%%cudatime --cluster\n1")


def test_ranks_of_one_gpu_do_not_get_nccl(two_engines: Cluster, run: Run) -> None:
    group = run(two_engines, "%gpu dist init -o -q").value
    assert group.backend == "gloo"
    assert group.notes == (
        "gloo, since ranks would share a GPU, which nccl refuses: %gpu pin first",
    )
    run(two_engines, "%gpu dist down -q")
    run(two_engines, "%gpu pin -q")
    group = run(two_engines, "%gpu dist init --backend gloo -o -q").value
    assert group.notes == (
        "pinned engines see their GPU as cuda:0: LOCAL_RANK is no device index there",
    )


def test_a_part_of_the_engines(two_engines: Cluster, run: Run) -> None:
    run(two_engines, "%gpu off --cluster -q")
    group = run(two_engines, "%gpu dist init -t 1 -o -q").value
    assert dict(group.ranks) == {1: 0}
    assert run(two_engines, "%gpu cluster -o -q").value[0].rank is None
    run(two_engines, "%gpu dist down -q")


def test_an_unknown_backend(two_engines: Cluster, run: Run) -> None:
    run(two_engines, "%gpu off --cluster -q")
    group = run(two_engines, "%gpu dist init --backend gloom -o -q").value
    assert group.world_size == 0
    assert all("torch refuses" in reason for reason in group.failed.values()), group.failed
    assert two_engines.value(0, "'RANK' in __import__('os').environ") is False


def test_a_rank_that_fails_does_not_delay_others(two_engines: Cluster, run: Run) -> None:
    run(two_engines, "%gpu off --cluster -q")
    two_engines.run(0, "import torch")
    two_engines.run(1, "import torch, os; os.environ['GLOO_SOCKET_IFNAME'] = 'nonexist0'")
    started = time.monotonic()
    group = run(two_engines, "%gpu dist init --timeout 3s -o -q").value
    assert time.monotonic() - started < 120  # torch's own limit is half an hour
    assert group.world_size == 0
    assert "nonexist0" in group.failed[1]
    assert group.failed[0].startswith("torch refuses")
    for engine in (0, 1):
        environment = two_engines.value(engine, "dict(__import__('os').environ)")
        assert "RANK" not in environment
        assert (
            two_engines.value(engine, "__import__('torch').distributed.is_initialized()") is False
        )
    two_engines.run(1, "del os.environ['GLOO_SOCKET_IFNAME']")
    assert run(two_engines, "%gpu dist init --timeout 30s -o -q").value.world_size == 2
    # The limit was for the meeting: later the group's store has torch's own.
    limit = "__import__('torch').distributed.distributed_c10d._get_default_store().timeout"
    assert two_engines.value(0, limit).total_seconds() == 1800


def test_the_memory_of_all_ranks(grouped_engines: Cluster, run: Run) -> None:
    ran = run(grouped_engines, "%%gpumem --cluster -o\nx = 1")
    assert [each.rank for each in ran.value.engines] == [0, 1]
    assert "Rank" in ran.text
