"""Engines restarted in place."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from IPython.core.error import UsageError

from gpumagic.cluster import connection, rpc
from tests.cluster.conftest import INITIALISE_CUDA, wait_for
from tests.restart import FREEZE
from tests.support.clusters import Cluster
from tests.support.planted_modules import PlantedModules
from tests.support.shells import Ran

Run = Callable[..., Ran]

COUNT = "__import__('torch').cuda.device_count()"


def test_engines_where_it_is_too_late_restart(two_engines: Cluster, run: Run) -> None:
    """The engine keeps its id and process; queued requests, other clients' too, are answered."""
    two_engines.run(0, f"{INITIALISE_CUDA}; mine = 1")
    run(two_engines, "%gpu cluster -q")

    (client,) = connection._clients.values()
    found = rpc.call(connection.Cluster(client, ""), [0], "choose", {"spec": "3"})
    assert found[0].value[1].status == "too-late"
    before = two_engines.client[0].apply_async(time.sleep, 0.5)
    waiting = [two_engines.client[0].apply_async(eval, f"{i} * 2") for i in range(3)]
    chosen = run(two_engines, "%gpu 3 --cluster --restart -o -q").value
    assert [each.selection.status for each in chosen] == ["restarted", "applied"]
    assert [each.pid for each in chosen] == [engine.pid for engine in two_engines.engines]
    assert chosen.notes == (
        "engine 0 restarted in place: variables and process groups there are gone",
    )
    before.get(timeout=300)
    assert [each.get(timeout=300) for each in waiting] == [0, 2, 4]
    assert two_engines.client.ids == [0, 1]
    assert two_engines.value(0, "'mine' in globals()") is False
    assert two_engines.value(0, COUNT) == 1
    assert run(two_engines, "%gpu cluster -o -q").value[0].table[3].ordinal == 0
    # The next choice is an ordinary one.
    two_engines.client[0].apply_sync(eval, "7")
    assert run(two_engines, "%gpu off --cluster -t 1 -o -q").value[0].selection.status == "applied"


def test_requests_that_arrive_behind_a_restart(
    two_engines: Cluster, run: Run, busy_engine: Any
) -> None:
    two_engines.run(0, INITIALISE_CUDA)
    run(two_engines, "%gpu cluster -q")

    (client,) = connection._clients.values()
    source = (
        "__import__('gpumagic.cluster.engine', fromlist=['r'])"
        ".choose('off', restart=True)[1].status"
    )
    with busy_engine(two_engines, 0):  # until all have arrived: what is under way may be lost
        asked = client[0].apply_async(eval, source)
        behind = [two_engines.client[0].apply_async(eval, str(i)) for i in range(20)]
        printed = two_engines.client[0].execute("print('after')", silent=False, block=False)
        sent = {number for each in (asked, *behind, printed) for number in each.msg_ids}
        # Among others: of what was lost in an earlier restart, the controller knows no end.
        wait_for(lambda: sent <= {*two_engines.client.queue_status(0, verbose=True)["queue"]})
    assert asked.get(timeout=300) == "restarted"
    assert [each.get(timeout=300) for each in behind] == list(range(20))
    printed.get(timeout=300)
    assert printed.wait_for_output(300)
    assert printed.stdout == "after\n"


def test_a_restarted_engine_works(two_engines: Cluster, run: Run, busy_engine: Any) -> None:
    """Interrupts reach it, it can be restarted again, and its end is noticed."""
    for _ in range(3):
        two_engines.run(0, FREEZE)  # without torch, which each would import again
        chosen = run(two_engines, "%gpu off --cluster -t 0 --restart -o -q").value
        assert chosen[0].selection.status == "restarted"
        two_engines.run(0, "import os; os.environ.pop('CUDA_VISIBLE_DEVICES')")
        two_engines.renew()
    at_work = busy_engine(two_engines, 0)
    at_work.__enter__()
    two_engines.client.send_signal(signal.SIGINT, targets=[0], block=True)
    assert two_engines.value(0, "6 * 7") == 42  # before it was let go
    with pytest.raises(Exception, match="KeyboardInterrupt"):
        at_work.__exit__(None, None, None)
    assert two_engines.value(0, "6 * 7") == 42


def test_the_end_of_a_restarted_engine_is_noticed(
    cluster_of: Callable[..., Cluster], run: Run
) -> None:
    cluster = cluster_of(1)
    cluster.run(0, INITIALISE_CUDA)
    run(cluster, "%gpu off --cluster --restart -q")
    cluster.kill(0)
    wait_for(lambda: not cluster.client.ids)  # else its nanny is not there


def test_a_restart_that_would_lose_something(two_engines: Cluster, run: Run) -> None:
    two_engines.run(
        0, f"{INITIALISE_CUDA}; import subprocess; child = subprocess.Popen(['sleep', '60'])"
    )
    said = r"no engine .* would lose the child process \d+ \(sleep\);"
    with pytest.raises(UsageError, match=said):
        run(two_engines, "%gpu off --cluster -t 0 --restart -o -q")
    assert two_engines.value(0, "'child' in globals()") is True
    assert "CUDA_VISIBLE_DEVICES" not in two_engines.value(0, "dict(__import__('os').environ)")
    child = two_engines.value(0, "child.pid")
    chosen = run(two_engines, "%gpu off --cluster -t 0 --restart --force -o -q").value
    assert chosen[0].selection.status == "restarted"
    assert not psutil.pid_exists(child)


def test_a_restarted_engine_imports_nothing_from_its_folder(
    cluster_of: Callable[..., Cluster], run: Run, tmp_path: Path
) -> None:
    """It keeps the folder, and its relative options their meaning."""
    cluster = cluster_of(1)
    planted = PlantedModules(tmp_path)
    cluster.run(
        0, "import gpumagic.restart, gpumagic.cluster.engine_restart, psutil, multiprocessing"
    )
    assert run(cluster, "%gpu 0 --cluster -o -q").value[0].error is None
    cluster.run(0, f"import os; {INITIALISE_CUDA}")
    # What the old process imports from its folder is its own matter: that has all it needs.
    planted.keep(cluster.value(0, "sorted(__import__('sys').modules)"))
    cluster.run(0, f"os.chdir({str(planted.folder)!r})")
    chosen = run(cluster, "%gpu off --cluster --restart -o -q").value
    assert [each.selection and each.selection.status for each in chosen] == ["restarted"], chosen
    assert planted.used == []
    assert cluster.value(0, "__import__('os').getcwd()") == str(planted.folder)
