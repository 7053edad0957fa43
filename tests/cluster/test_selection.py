"""The GPUs of the engines, and which of them each engine sees."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
from IPython.core.error import UsageError

from gpumagic import GpuMagicWarning
from gpumagic.cluster import calls
from gpumagic.cluster.results import ClusterSelection, ClusterTable
from tests.cluster.conftest import INITIALISE_CUDA
from tests.support.clusters import Cluster
from tests.support.shells import Ran
from tests.virtual_gpu import GPU, Mig, Scenario

Run = Callable[..., Ran]

COUNT = "__import__('torch').cuda.device_count()"
MASK = "__import__('os').environ['CUDA_VISIBLE_DEVICES']"


def chosen_by(chosen: ClusterSelection) -> list[list[int]]:
    """The indexes of the devices that each engine sees."""
    return [[device.index for device in each.value.devices] for each in chosen]


def test_every_engine_and_device(two_engines: Cluster, run: Run) -> None:
    ran = run(two_engines, "table = %gpu cluster -o")
    table = run(two_engines, "table").value
    assert isinstance(table, ClusterTable)
    assert [each.engine for each in table] == [0, 1]
    assert [len(each.value) for each in table] == [4, 4]
    assert "0–1 as cuda:0" in ran.text
    assert "2 engines on 1 host (profile default)" in ran.text
    assert two_engines.value(0, "'torch' in __import__('sys').modules") is False


def test_each_engine_its_own(two_engines: Cluster, run: Run) -> None:
    ran = run(two_engines, "chosen = %gpu pin -o")
    chosen = run(two_engines, "chosen").value
    assert [each.value.status for each in chosen] == ["applied", "applied"]
    assert chosen_by(chosen) == [[0], [1]]
    assert "cuda:0 = GPU 1" in ran.text
    # What torch finds there, and what other libraries read there.
    for engine in (0, 1):
        assert two_engines.value(engine, COUNT) == 1
        assert two_engines.value(engine, MASK) == str(engine)
    # A rank is among all engines of the host, also where one is asked.
    assert chosen_by(run(two_engines, "%gpu pin -t 1 -o -q").value) == [[1]]


def test_each_gets_of_what_its_task_was_given(cluster_of: Callable[..., Cluster], run: Run) -> None:
    """A GPU, or an instance, for each task, as schedulers do it."""
    parts = [f"MIG-{i}1111111-2222-3333-4444-555555555555" for i in (1, 2)]
    scenario = Scenario(devices=[GPU(mig=tuple(Mig(uuid=uuid) for uuid in parts)), GPU()])
    masks = [{"CUDA_VISIBLE_DEVICES": uuid} for uuid in (parts[1], "1", "1")]
    cluster = cluster_of(3, scenario, env=masks)
    with pytest.raises(UsageError, match="more engines were started with 1 GPU of 2"):
        run(cluster, "%gpu pin")
    run(cluster, "%gpu pin -t 0:2 -q")
    assert cluster.value(0, MASK) == parts[1]
    assert cluster.value(1, MASK) == "1"
    assert cluster.value(2, MASK) == "1"


def test_a_choice_for_all(two_engines: Cluster, run: Run) -> None:
    assert chosen_by(run(two_engines, "%gpu 2,3 --cluster -t 1 -o -q").value) == [[2, 3]]
    table = run(two_engines, "%gpu cluster -o -q").value
    assert [[d.index for d in each.value if d.visible] for each in table] == [[0, 1, 2, 3], [2, 3]]
    with pytest.raises(UsageError, match="no engine was changed; engine 0: there is no GPU 9"):
        run(two_engines, "%gpu 9 --cluster -v chosen -q")
    assert all("no GPU 9" in error for error in run(two_engines, "chosen").value.failed.values())
    with pytest.raises(UsageError, match="did you mean off"):
        run(two_engines, "%gpu offf --cluster")


def test_engines_that_choose_at_once_share_no_gpu(two_engines: Cluster, run: Run) -> None:
    chosen = run(two_engines, "%gpu auto 2 --cluster -o -q").value
    seen = [index for indexes in chosen_by(chosen) for index in indexes]
    assert sorted(seen) == [0, 1, 2, 3]
    with pytest.raises(UsageError, match="no engine was changed"):
        run(two_engines, "%gpu auto --min-free 9TiB --cluster")


def test_too_late_is_named(two_engines: Cluster, run: Run) -> None:
    two_engines.run(1, INITIALISE_CUDA)
    with pytest.warns(GpuMagicWarning) as caught:  # noqa: PT031
        warnings.filterwarnings("ignore", category=DeprecationWarning)  # of Colab's ipyparallel
        chosen = run(two_engines, "%gpu pin -o -q").value
    (warning,) = caught
    assert str(warning.message).startswith("engine 1: Too late for")
    assert "torch has initialised CUDA" in str(warning.message)
    assert "Cluster.restart_engines()" in str(warning.message)
    assert [each.value.status for each in chosen] == ["applied", "too-late"]
    assert chosen.too_late == (1,)


def test_engines_that_do_not_answer_change_nothing(
    two_engines: Cluster, run: Run, busy_engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(two_engines, "%gpu cluster -q")
    with busy_engine(two_engines, 1):
        monkeypatch.setattr(calls, "TIMEOUT", 8.0)
        with pytest.raises(UsageError, match=r"engine 1: no answer .* nothing was changed"):
            run(two_engines, "%gpu pin")
        assert two_engines.value(0, COUNT) == 4
