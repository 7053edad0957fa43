"""Which engine sees which devices: chosen, verified there, changed even when it is too late."""

from __future__ import annotations

import concurrent.futures
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from IPython.core.error import UsageError

from gpumagic import GpuMagicWarning
from gpumagic.results import ClusterSelection
from tests.cluster.conftest import wait_for
from tests.support.clusters import Cluster
from tests.support.planted_modules import PlantedModules
from tests.support.shells import Ran
from tests.virtual_gpu import GPU, ExternalProcess, Mig, Scenario

Run = Callable[..., Ran]

COUNT = "__import__('torch').cuda.device_count()"
USE = "import torch; torch.zeros(1, device='cuda')"


def test_each_engine_its_own(two: Cluster, run: Run) -> None:
    ran = run(two, "chosen = %gpu pin -o")
    chosen = run(two, "chosen").value
    assert isinstance(chosen, ClusterSelection)
    assert [each.selection.status for each in chosen] == ["applied", "applied"]
    assert [[d.index for d in each.selection.devices] for each in chosen] == [[0], [1]]
    assert chosen.targets == (0, 1)
    assert not chosen.too_late
    assert "cuda:0 = GPU 1" in ran.text
    # What torch finds there, and that the UUIDs, not numbers, were written.
    for engine in (0, 1):
        assert two.value(engine, COUNT) == 1
        mask = two.value(engine, "__import__('os').environ['CUDA_VISIBLE_DEVICES']")
        assert mask.startswith("GPU-")
    names = run(two, "table = %gpu cluster -o").text
    assert "0 as cuda:0" in names
    assert "none" in names


def test_what_is_pinned_to_others_is_theirs(two: Cluster, run: Run) -> None:
    first = run(two, "%gpu pin -t 0 -o -q").value
    second = run(two, "%gpu pin -t 1 -o -q").value
    assert [d.index for d in first[0].selection.devices] == [0]
    assert [d.index for d in second[0].selection.devices] == [1]


def test_what_a_silent_engine_is_pinned_to_is_not_known(two: Cluster, run: Run, busy: Any) -> None:
    run(two, "%gpu pin -t 0 -q")
    with busy(two, 0):
        with pytest.raises(UsageError, match="engine 0 does not answer and may hold any GPU"):
            run(two, "%gpu pin -t 1 --timeout 8s")
        assert two.value(1, COUNT) == 4  # nothing was changed
        assert run(two, "%gpu pin -t 1 --share --timeout 8s -o -q").value.targets == (1,)


def test_each_gets_of_what_its_task_was_given(cluster_of: Callable[..., Cluster], run: Run) -> None:
    """One instance for each task, as schedulers do it: not even another's of the same device."""
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


def test_several_each_and_shared(two: Cluster, run: Run) -> None:
    chosen = run(two, "%gpu pin --per-engine 2 -o -q").value
    assert [[d.index for d in each.selection.devices] for each in chosen] == [[0, 1], [2, 3]]
    with pytest.raises(UsageError, match="has 4 GPUs and 2 engines for 3 each: --share lets"):
        run(two, "%gpu pin --per-engine 3")
    assert two.value(0, COUNT) == 2  # nothing was changed
    chosen = run(two, "%gpu pin --per-engine 3 --share -o -q").value
    assert [[d.index for d in each.selection.devices] for each in chosen] == [[0, 1, 2], [3, 0, 1]]


def test_a_choice_for_all(two: Cluster, run: Run) -> None:
    assert "no GPU" in run(two, "%gpu off --cluster").text
    assert two.value(0, COUNT) == two.value(1, COUNT) == 0
    run(two, "%gpu reset --cluster -q")
    run(two, "%gpu 2,3 --cluster -t 1 -q")
    table = run(two, "%gpu cluster -o -q").value
    assert [[d.index for d in each.table if d.visible] for each in table] == [[0, 1, 2, 3], [2, 3]]
    with pytest.raises(UsageError, match="no engine has done it; engine 0: there is no GPU 9"):
        run(two, "%gpu 9 --cluster -v chosen -q")
    chosen = run(two, "chosen").value
    assert all("no GPU 9" in str(each.error) for each in chosen), chosen
    with pytest.raises(UsageError, match="did you mean 'off'"):
        run(two, "%gpu offf --cluster")


def test_the_freest(cluster_of: Callable[..., Cluster], run: Run) -> None:
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


def test_too_late_is_named(two: Cluster, run: Run) -> None:
    two.run(1, USE)
    with pytest.warns(GpuMagicWarning) as caught:
        chosen = run(two, "%gpu pin -o -q").value
    (warning,) = caught
    text = str(warning.message)
    assert text.startswith("Too late on engine 1: torch has initialised CUDA")
    assert text.endswith(
        "To change that: %gpu pin --restart (those engines start afresh in place, and lose their "
        "variables)"
    )
    assert [each.selection.status for each in chosen] == ["applied", "too-late"]
    assert chosen.too_late == (1,)
    for line in ("off --cluster -t 1", "pin -t 0,1 --per-engine 2 --share"):
        with pytest.warns(GpuMagicWarning, match=f": %gpu {line} --restart"):
            run(two, f"%gpu {line} -q")


def test_too_late_is_no_obstacle(two: Cluster, run: Run) -> None:
    """The engine keeps its id and its process; what waits behind it, others' too, is answered."""
    two.run(0, f"{USE}; mine = 1")
    run(two, "%gpu cluster -q")
    from gpumagic.cluster import connection, rpc

    (client,) = connection._clients.values()
    found = rpc.call(connection.Cluster(client, ""), [0], "choose", {"spec": "3"})
    assert found[0].value[1].status == "too-late"
    before = two.client[0].apply_async(time.sleep, 0.5)
    waiting = [two.client[0].apply_async(eval, f"{i} * 2") for i in range(3)]
    chosen = run(two, "%gpu 3 --cluster --restart -o -q").value
    assert [each.selection.status for each in chosen] == ["restarted", "applied"]
    assert [each.pid for each in chosen] == [engine.pid for engine in two.engines]
    assert chosen.notes == (
        "engine 0 started afresh in place: variables and process groups there are gone",
    )
    before.get(timeout=30)
    assert [each.get(timeout=30) for each in waiting] == [0, 2, 4]
    assert two.client.ids == [0, 1]
    assert two.value(0, "'mine' in globals()") is False
    assert two.value(0, COUNT) == 1
    assert run(two, "%gpu cluster -o -q").value[0].table[3].ordinal == 0
    # The next choice is an ordinary one.
    two.client[0].apply_sync(eval, "7")
    assert run(two, "%gpu off --cluster -t 1 -o -q").value[0].selection.status == "applied"


def test_requests_that_arrive_behind_a_restart(two: Cluster, run: Run) -> None:
    two.run(0, USE)
    run(two, "%gpu cluster -q")

    from gpumagic.cluster import connection

    (client,) = connection._clients.values()
    source = (
        "__import__('gpumagic.cluster.engine', fromlist=['r'])"
        ".choose('off', restart=True)[1].status"
    )
    asked = client[0].apply_async(eval, source)
    behind = [two.client[0].apply_async(eval, str(i)) for i in range(20)]
    printed = two.client[0].execute("print('after')", silent=False, block=False)
    assert asked.get(timeout=60) == "restarted"
    assert [each.get(timeout=60) for each in behind] == list(range(20))
    printed.get(timeout=60)
    assert printed.wait_for_output(10)
    assert printed.stdout == "after\n"


def test_a_restarted_engine_is_a_whole_one(two: Cluster, run: Run, busy: Any) -> None:
    """Interrupts reach it, it can be restarted again, and its end is noticed."""
    for _ in range(3):
        two.run(0, USE)
        chosen = run(two, "%gpu off --cluster -t 0 --restart -o -q").value
        assert chosen[0].selection.status == "restarted"
        two.run(0, "import os; os.environ.pop('CUDA_VISIBLE_DEVICES')")
        two.renew()
    at_work = busy(two, 0)
    at_work.__enter__()
    two.client.send_signal(signal.SIGINT, targets=[0], block=True)
    assert two.value(0, "6 * 7") == 42  # before it was let go
    with pytest.raises(Exception, match="KeyboardInterrupt"):
        at_work.__exit__(None, None, None)
    assert two.value(0, "6 * 7") == 42


def test_the_end_of_a_restarted_engine_is_noticed(
    cluster_of: Callable[..., Cluster], run: Run
) -> None:
    cluster = cluster_of(1)
    cluster.run(0, USE)
    run(cluster, "%gpu off --cluster --restart -q")
    cluster.kill(0)
    wait_for(lambda: not cluster.client.ids)  # else its nanny is not there


def test_a_restart_that_would_lose_something(two: Cluster, run: Run) -> None:
    two.run(0, f"{USE}; import subprocess; child = subprocess.Popen(['sleep', '60'])")
    said = r"no engine .* would lose the child process \d+ \(sleep\);"
    with pytest.raises(UsageError, match=said):
        run(two, "%gpu off --cluster -t 0 --restart -o -q")
    assert two.value(0, "'child' in globals()") is True
    assert "CUDA_VISIBLE_DEVICES" not in two.value(0, "dict(__import__('os').environ)")
    child = two.value(0, "child.pid")
    chosen = run(two, "%gpu off --cluster -t 0 --restart --force -o -q").value
    assert chosen[0].selection.status == "restarted"
    assert not psutil.pid_exists(child)


def test_an_interrupt_withdraws_what_a_busy_engine_has_not_begun(
    two: Cluster, run: Run, busy: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seconds later it would have restarted, and lost its variables."""
    two.run(0, f"{USE}; weights = 5")
    run(two, "%gpu cluster -q")

    wait = concurrent.futures.wait
    waits: list[object] = []

    def interrupted(futures: Any, timeout: float) -> object:
        waits.append(futures)
        if len(waits) == 1:
            raise KeyboardInterrupt
        return wait(futures, 60)  # however slow the machine: the engine does confirm

    with busy(two, 0), monkeypatch.context() as patch:
        patch.setattr("gpumagic.cluster.rpc.concurrent.futures.wait", interrupted)
        with pytest.raises(UsageError, match="interrupted: engines that had not begun"):
            run(two, "%gpu off --cluster -t 0 --restart -q")
    assert len(waits) == 2
    assert two.value(0, "weights") == 5
    assert two.value(0, COUNT) == 4


def test_engines_that_do_not_answer_change_nothing(two: Cluster, run: Run, busy: Any) -> None:
    run(two, "%gpu cluster -q")
    with busy(two, 1):
        with pytest.raises(UsageError, match=r"engine 1: no answer .* nothing was changed"):
            run(two, "%gpu pin --timeout 8s")
        assert two.value(0, COUNT) == 4


def test_a_restarted_engine_imports_nothing_from_its_folder(
    cluster_of: Callable[..., Cluster], run: Run, tmp_path: Path
) -> None:
    """Nor does it lose it, or what its relative options meant."""
    cluster = cluster_of(1)
    planted = PlantedModules(tmp_path)
    cluster.run(
        0, "import gpumagic.restart, gpumagic.cluster.engine_restart, psutil, multiprocessing"
    )
    assert run(cluster, "%gpu 0 --cluster -o -q").value[0].error is None
    cluster.run(0, f"import os; {USE}")
    # What the old process imports from its folder is its own matter: that has all it needs.
    planted.keep(cluster.value(0, "sorted(__import__('sys').modules)"))
    cluster.run(0, f"os.chdir({str(planted.folder)!r})")
    chosen = run(cluster, "%gpu off --cluster --restart -o -q").value
    assert [each.selection and each.selection.status for each in chosen] == ["restarted"], chosen
    assert planted.used == []
    assert cluster.value(0, "__import__('os').getcwd()") == str(planted.folder)
