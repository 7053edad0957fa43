"""The device table of the engines, and the devices that each of them sees."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from IPython.core.error import UsageError

from gpumagic import GpuMagicWarning
from gpumagic.cluster import assignment, connection, rpc, selection
from gpumagic.results import (
    ClusterSelection,
    ClusterTable,
)
from gpumagic.selection import claims
from gpumagic.system import system_files
from tests.cluster.conftest import INITIALISE_CUDA, wait_for
from tests.support.claims import claimed_by_another
from tests.support.clusters import Cluster
from tests.support.shells import Ran
from tests.virtual_gpu import GPU, ExternalProcess, Mig, Scenario

Run = Callable[..., Ran]

COUNT = "__import__('torch').cuda.device_count()"


def test_every_engine_and_device(two_engines: Cluster, run: Run) -> None:
    ran = run(two_engines, "table = %gpu cluster -o")
    assert "0–1 as cuda:3" in ran.text
    assert "2 engines on 1 host" in ran.text
    table = run(two_engines, "table").value
    assert isinstance(table, ClusterTable)
    assert [each.engine for each in table] == [0, 1]
    assert [each.pid for each in table] == [engine.pid for engine in two_engines.engines]
    for each in table:
        assert each.error is None
        assert each.table is not None
        assert [(d.index, d.ordinal, d.visible) for d in each.table] == [
            (i, i, True) for i in range(4)
        ]
    assert len(table.hosts) == 1
    assert len(table.to_pandas()) == 8
    assert table.to_dict()["engines"][1]["table"]["devices"][3]["index"] == 3


def test_processes_of_engines(two_engines: Cluster, run: Run) -> None:
    two_engines.run(1, "import torch; held = torch.zeros(2**20, device='cuda:2')")
    table = run(two_engines, "table = %gpu cluster -p -o\ntable").value
    (held,) = [p for p in table[0].table[2].processes if p.pid == two_engines.engines[1].pid]
    assert held.memory > 2**20
    text = str(table)
    assert any(str(held.pid) in line and " 1 " in line for line in text.splitlines()), text


def test_an_engine_without_gpu(two_engines: Cluster, run: Run) -> None:
    two_engines.run(1, "import os; os.environ['CUDA_VISIBLE_DEVICES'] = ''")
    ran = run(two_engines, "table = %gpu cluster -o")
    assert "0 as cuda:1" in ran.text
    assert any(" 1 " in line and "no GPU" in line for line in ran.text.splitlines())


def test_an_engine_that_has_ended(
    cluster_of: Callable[..., Cluster], run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    two_engines = cluster_of(2)
    run(two_engines, "%gpu cluster -q")
    two_engines.kill(1)
    # ipyparallel may miss that one ends which is just being asked: no reply comes then.
    wait_for(lambda: len(run(two_engines, "%gpu cluster -o -q --timeout 2s").value) == 1)
    assert "1 engine on 1 host" in run(two_engines, "%gpu cluster").text
    # The client's thread may remove it after it was looked up, and before anything is sent.
    found, before = rpc.registered, iter([[0, 1]])
    monkeypatch.setattr(rpc, "registered", lambda *of: next(before, None) or found(*of))
    connected = connection.Cluster(two_engines.client, "a client")
    replies = rpc.call(connected, [0, 1], "device_table")
    assert next(before, None) is None
    assert (replies[0].error, replies[1].error) == (None, "the engine is gone")
    # Another error is not one of these.
    with pytest.raises(ZeroDivisionError):
        rpc.send(two_engines.client, [0, 1], lambda engines: 1 / 0)


def test_each_engine_its_own(two_engines: Cluster, run: Run) -> None:
    ran = run(two_engines, "chosen = %gpu pin -o")
    chosen = run(two_engines, "chosen").value
    assert isinstance(chosen, ClusterSelection)
    assert [each.selection.status for each in chosen] == ["applied", "applied"]
    assert [[d.index for d in each.selection.devices] for each in chosen] == [[0], [1]]
    assert chosen.targets == (0, 1)
    assert not chosen.too_late
    assert "cuda:0 = GPU 1" in ran.text
    # What torch finds there, and that the UUIDs, not numbers, were written.
    for engine in (0, 1):
        assert two_engines.value(engine, COUNT) == 1
        mask = two_engines.value(engine, "__import__('os').environ['CUDA_VISIBLE_DEVICES']")
        assert mask.startswith("GPU-")
    names = run(two_engines, "table = %gpu cluster -o").text
    assert "0 as cuda:0" in names
    assert "none" in names


def test_what_is_pinned_to_others_is_theirs(two_engines: Cluster, run: Run) -> None:
    first = run(two_engines, "%gpu pin -t 0 -o -q").value
    second = run(two_engines, "%gpu pin -t 1 -o -q").value
    assert [d.index for d in first[0].selection.devices] == [0]
    assert [d.index for d in second[0].selection.devices] == [1]


def test_what_a_silent_engine_is_pinned_to_is_not_known(
    two_engines: Cluster, run: Run, busy_engine: Any
) -> None:
    run(two_engines, "%gpu pin -t 0 -q")
    with busy_engine(two_engines, 0):
        with pytest.raises(UsageError, match="engine 0 does not answer and may hold any GPU"):
            run(two_engines, "%gpu pin -t 1 --timeout 8s")
        assert two_engines.value(1, COUNT) == 4  # nothing was changed
        assert run(two_engines, "%gpu pin -t 1 --share --timeout 8s -o -q").value.targets == (1,)


def test_each_gets_of_what_its_task_was_given(cluster_of: Callable[..., Cluster], run: Run) -> None:
    """One instance for each task, as schedulers do it: no other instance of the same device."""
    parts = [f"MIG-{i}1111111-2222-3333-4444-555555555555" for i in (1, 2)]
    scenario = Scenario(devices=[GPU(mig=tuple(Mig(uuid=uuid) for uuid in parts)), GPU()])
    masks = [{"CUDA_VISIBLE_DEVICES": uuid} for uuid in (parts[1], "1")]
    cluster = cluster_of(2, scenario, env=masks)

    def pinned() -> list[str]:
        mask = "__import__('os').environ['CUDA_VISIBLE_DEVICES']"
        return [cluster.value(engine, mask) for engine in (0, 1)]

    run(cluster, "%gpu pin -q")
    assert pinned()[0] == parts[1]
    assert pinned()[1].startswith("GPU-")
    run(cluster, "%gpu reset --cluster -q")
    run(cluster, "%gpu auto 2 --cluster -q")
    assert pinned()[0] == parts[1]
    assert pinned()[1].startswith("GPU-")


def test_what_a_scheduler_gave_is_all_there_is(
    cluster_of: Callable[..., Cluster], run: Run
) -> None:
    cluster = cluster_of(2, env=[{"CUDA_VISIBLE_DEVICES": "2,3"}] * 2)
    chosen = run(cluster, "%gpu pin -t 0 -o -q").value  # nothing is pinned to the other
    assert [[d.index for d in each.selection.devices] for each in chosen] == [[2]]
    chosen = run(cluster, "%gpu pin -o -q").value
    assert [[d.index for d in each.selection.devices] for each in chosen] == [[2], [3]]
    with pytest.raises(UsageError, match="has 2 GPUs and 2 engines for 2 each"):
        run(cluster, "%gpu pin --per-engine 2")
    chosen = run(cluster, "%gpu auto 1 --cluster -o -q").value
    assert chosen[0].selection.devices[0].index in (2, 3)


def test_several_devices_for_each_engine_and_shared_ones(two_engines: Cluster, run: Run) -> None:
    chosen = run(two_engines, "%gpu pin --per-engine 2 -o -q").value
    assert [[d.index for d in each.selection.devices] for each in chosen] == [[0, 1], [2, 3]]
    with pytest.raises(UsageError, match="has 4 GPUs and 2 engines for 3 each: --share lets"):
        run(two_engines, "%gpu pin --per-engine 3")
    assert two_engines.value(0, COUNT) == 2  # nothing was changed
    chosen = run(two_engines, "%gpu pin --per-engine 3 --share -o -q").value
    assert [[d.index for d in each.selection.devices] for each in chosen] == [[0, 1, 2], [3, 0, 1]]


def test_a_choice_for_all(two_engines: Cluster, run: Run) -> None:
    assert "no GPU" in run(two_engines, "%gpu off --cluster").text
    assert two_engines.value(0, COUNT) == two_engines.value(1, COUNT) == 0
    run(two_engines, "%gpu reset --cluster -q")
    run(two_engines, "%gpu 2,3 --cluster -t 1 -q")
    table = run(two_engines, "%gpu cluster -o -q").value
    assert [[d.index for d in each.table if d.visible] for each in table] == [[0, 1, 2, 3], [2, 3]]
    with pytest.raises(UsageError, match="no engine was changed; engine 0: there is no GPU 9"):
        run(two_engines, "%gpu 9 --cluster -v chosen -q")
    chosen = run(two_engines, "chosen").value
    assert all("no GPU 9" in str(each.error) for each in chosen), chosen
    with pytest.raises(UsageError, match="did you mean 'off'"):
        run(two_engines, "%gpu offf --cluster")


def test_auto_selects_the_most_free_memory(cluster_of: Callable[..., Cluster], run: Run) -> None:
    busy = [ExternalProcess(i, 9000 + i, held * 2**30) for i, held in enumerate((40, 5, 60, 20))]
    cluster = cluster_of(2, Scenario(devices=[GPU()] * 4, processes=busy))
    chosen = run(cluster, "%gpu auto 2 --cluster -o -q").value
    assert [[d.index for d in each.selection.devices] for each in chosen] == [[1], [3]]
    with pytest.raises(UsageError, match="which is enough for 1"):
        run(cluster, "%gpu auto 2 --cluster --min-free 70GiB")
    chosen = run(cluster, "%gpu auto 1 --cluster -o -q").value
    assert [[d.index for d in each.selection.devices] for each in chosen] == [[1], []]
    assert chosen.targets == (0,)
    with pytest.raises(UsageError, match="the cluster has 4 GPUs and 2 engines, which is enough"):
        run(cluster, "%gpu auto 3 --cluster")


def test_engines_claim_what_they_are_pinned_to(two_engines: Cluster, run: Run) -> None:
    chosen = run(two_engines, "%gpu pin -o -q").value
    uuids = [each.selection.devices[0].uuid for each in chosen]
    found = claims.all_of(uuids)
    assert [claim.pid for uuid in uuids for claim in found[uuid]] == [
        engine.pid for engine in two_engines.engines
    ]
    assert chosen.notes == ()  # their own claims are none of another's
    assert run(two_engines, "%gpu auto 2 --cluster -o -q").value.notes == ()
    run(two_engines, "%gpu pin --no-claim -q")
    assert claims.all_of(uuids) == {uuid: [] for uuid in uuids}


def test_auto_leaves_what_other_kernels_claim_for_last(two_engines: Cluster, run: Run) -> None:
    table = run(two_engines, "%gpu cluster -o -q").value[0].table
    uuids = [device.uuid for device in table]

    def auto(line: str) -> tuple[list[int], tuple[str, ...]]:
        chosen = run(two_engines, f"%gpu auto {line} --cluster -o -q").value
        return [d.index for each in chosen for d in each.selection.devices], chosen.notes

    with claimed_by_another(*uuids[:2]) as pid:
        assert auto("2") == ([2, 3], ())
        with claimed_by_another(*uuids[2:]):
            indexes, notes = auto("1")
            assert len(notes) == 1
            assert notes[0].startswith(f"GPU {indexes[0]} of ")
        assert auto("1 --no-claim") == ([0], ())
        pinned = run(two_engines, "%gpu pin -t 0 -o -q").value
        assert [note.partition(" of ")[0] for note in pinned.notes] == ["GPU 0"]
        assert pinned.notes[0].endswith(f" is claimed by process {pid}")


def test_a_named_gpu_that_another_kernel_claims_is_said(two_engines: Cluster, run: Run) -> None:
    """But not the claims of the engines that choose."""
    table = run(two_engines, "%gpu cluster -o -q").value[0].table
    with claimed_by_another(table[1].uuid) as pid:
        chosen = run(two_engines, "%gpu 0,1 --cluster -o -q").value
        (note,) = chosen.notes
        assert note.startswith("GPU 1 of ")
        assert note.endswith(f" is claimed by process {pid}")
        assert note in str(chosen)
        assert run(two_engines, "%gpu 0 --cluster -o -q").value.notes == ()
        assert run(two_engines, "%gpu 1 --cluster --no-claim -o -q").value.notes == ()
        # Of the engines that are not asked, too: they are other processes.
        run(two_engines, "%gpu 3 --cluster -t 0 -q")
        (note,) = run(two_engines, "%gpu 3 --cluster -t 1 -o -q").value.notes
        assert note.endswith(f" is claimed by process {two_engines.engines[0].pid}")


def test_auto_chooses_again_where_another_kernel_was_faster(
    two_engines: Cluster, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process claims both GPUs between the choice and the claims of the engines."""
    most_free, others, rounds = assignment.most_free, ExitStack(), []

    def chosen_and_claimed(*arguments: Any, **options: Any) -> dict[int, str]:
        chosen = most_free(*arguments, **options)
        rounds.append(sorted(chosen.values()))
        if len(rounds) == 1:
            others.enter_context(claimed_by_another(*rounds[0]))
        return chosen

    monkeypatch.setattr(assignment, "most_free", chosen_and_claimed)
    with others:
        chosen = run(two_engines, "%gpu auto 2 --cluster -o -q").value
        assert len(rounds) == 2
        uuids = sorted(d.uuid for each in chosen for d in each.selection.devices)
        assert uuids == rounds[1]
        assert {*rounds[0]}.isdisjoint(uuids)
        assert chosen.notes == ()
        # What it knows of is no reason to choose again.
        assert run(two_engines, "%gpu auto 2 --cluster -o -q").value.notes == ()
        assert len(rounds) == 3
        run(two_engines, "%gpu auto 2 --cluster --no-claim -q")
        assert len(rounds) == 4


def test_two_clusters_that_choose_at_once_share_no_gpu(
    cluster_of: Callable[..., Cluster], run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both have read the devices before either claims any."""
    scenario = Scenario(devices=[GPU()] * 4)
    scenario.write_files(tmp_path)  # one machine
    env = [{system_files.ROOT: str(tmp_path)}] * 2
    clusters = [cluster_of(2, scenario, env) for _ in range(2)]
    both_have_read, read = threading.Barrier(2, timeout=300), selection.complete_table
    tables: list[int] = []

    def read_together(cluster: Any, *arguments: Any) -> Any:
        table = read(cluster, *arguments)
        tables.append(id(cluster))
        if tables.count(id(cluster)) == 1:
            both_have_read.wait()
        return table

    monkeypatch.setattr(selection, "complete_table", read_together)
    connected = [connection.Cluster(each.client, "a client") for each in clusters]
    found: dict[int, Any] = {}

    def choose(number: int) -> None:
        found[number] = selection.choose(connected[number], "auto 2")

    threads = [threading.Thread(target=choose, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    uuids = [d.uuid for chosen in found.values() for e in chosen for d in e.selection.devices]
    assert len(uuids) == len({*uuids}) == 4
    assert len(tables) > 2


def test_too_late_is_named(two_engines: Cluster, run: Run) -> None:
    two_engines.run(1, INITIALISE_CUDA)
    with pytest.warns(GpuMagicWarning) as caught:
        chosen = run(two_engines, "%gpu pin -o -q").value
    (warning,) = caught
    text = str(warning.message)
    assert text.startswith("Too late on engine 1: torch has initialised CUDA")
    assert text.endswith(
        "To change that: restart the engines (ipyparallel's Cluster.restart_engines), and choose "
        "first"
    )
    assert [each.selection.status for each in chosen] == ["applied", "too-late"]
    assert chosen.too_late == (1,)


def test_engines_that_do_not_answer_change_nothing(
    two_engines: Cluster, run: Run, busy_engine: Any
) -> None:
    run(two_engines, "%gpu cluster -q")
    with busy_engine(two_engines, 1):
        with pytest.raises(UsageError, match=r"engine 1: no answer .* nothing was changed"):
            run(two_engines, "%gpu pin --timeout 8s")
        assert two_engines.value(0, COUNT) == 4
