"""The table of the engines, and what stands in its way."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from IPython.core.error import UsageError

from gpumagic.results import ClusterTable
from tests.cluster.conftest import wait_for
from tests.support.clusters import Cluster
from tests.support.shells import Ran

Run = Callable[..., Ran]


def test_every_engine_and_device(two: Cluster, run: Run) -> None:
    ran = run(two, "table = %gpu cluster -o")
    assert "0–1 as cuda:3" in ran.text
    assert "2 engines on 1 host" in ran.text
    table = run(two, "table").value
    assert isinstance(table, ClusterTable)
    assert [each.engine for each in table] == [0, 1]
    assert [each.pid for each in table] == [engine.pid for engine in two.engines]
    for each in table:
        assert each.error is None
        assert each.table is not None
        assert [(d.index, d.ordinal, d.visible) for d in each.table] == [
            (i, i, True) for i in range(4)
        ]
    assert len(table.hosts) == 1
    assert len(table.to_pandas()) == 8
    assert table.to_dict()["engines"][1]["table"]["devices"][3]["index"] == 3


def test_processes_of_engines(two: Cluster, run: Run) -> None:
    two.run(1, "import torch; held = torch.zeros(2**20, device='cuda:2')")
    table = run(two, "table = %gpu cluster -p -o\ntable").value
    (held,) = [p for p in table[0].table[2].processes if p.pid == two.engines[1].pid]
    assert held.memory > 2**20
    text = str(table)
    assert any(str(held.pid) in line and " 1 " in line for line in text.splitlines()), text


def test_targets(two: Cluster, run: Run) -> None:
    assert [each.engine for each in run(two, "%gpu cluster -o -t 1").value] == [1]
    assert [each.engine for each in run(two, "%gpu cluster -o -t ::-1").value] == [1, 0]
    assert [each.engine for each in run(two, "%gpu cluster -o -t -1:").value] == [1]
    assert [each.engine for each in run(two, "%gpu cluster -o --targets -2:-1").value] == [0]
    for text, reason in (
        ("7", "there is no engine 7; there are 0–1"),
        ("0:0", "no engine; there are 0–1"),
        ("x", "write an engine's id, a list (0,3) or a slice (0:4)"),
        ("::0", "a step of 0 leads nowhere"),
    ):
        with pytest.raises(UsageError) as raised:
            run(two, f"%gpu cluster -t {text}")
        assert str(raised.value) == f"-t {text}: {reason}"


def test_an_engine_without_gpu(two: Cluster, run: Run) -> None:
    two.run(1, "import os; os.environ['CUDA_VISIBLE_DEVICES'] = ''")
    ran = run(two, "table = %gpu cluster -o")
    assert "0 as cuda:1" in ran.text
    assert any(" 1 " in line and "no GPU" in line for line in ran.text.splitlines())


def test_a_busy_engine_holds_up_nobody(two: Cluster, run: Run, busy: Any) -> None:
    run(two, "%gpu cluster -q")
    with busy(two, 1):  # it ends only after we have been answered
        table = run(two, "%gpu cluster -o --timeout 8s").value
        group = run(two, "%gpu dist -o --timeout 500ms").value
    assert table[0].table is not None
    assert table[1].table is None
    assert table[1].error == "no answer within 8 s: it is busy, or has lost its connection"
    assert [each.engine for each in table.silent] == [1]
    assert "engine 1: no answer within 8 s" in str(table)
    assert "1 of 2 engines" in str(table)
    assert group.failed[1].startswith("no answer within 0.5 s")
    # The question was taken back: it does not wait at the engine until that has time.
    assert run(two, "%gpu cluster -o").value[1].error is None


def test_nothing_outstanding_is_left(two: Cluster, run: Run) -> None:
    run(two, "%gpu cluster -q")
    from gpumagic.cluster import connection

    (client,) = connection._clients.values()
    client.wait(timeout=60)
    assert not client.outstanding
    assert not client.results


def test_an_engine_that_has_ended(cluster_of: Callable[..., Cluster], run: Run) -> None:
    two = cluster_of(2)
    run(two, "%gpu cluster -q")
    two.kill(1)
    wait_for(lambda: len(run(two, "%gpu cluster -o -q").value) == 1)
    assert "1 engine on 1 host" in run(two, "%gpu cluster").text


def test_another_version_and_none(cluster_of: Callable[..., Cluster], run: Run) -> None:
    two = cluster_of(2)
    two.run(0, "import gpumagic.cluster.engine as r; r.__version__ = '0.0.9'")
    two.run(
        1,
        "import sys\n"
        "class Missing:\n"
        "    def find_spec(self, name, *rest):\n"
        "        if name.split('.')[0] == 'gpumagic':\n"
        "            raise ModuleNotFoundError(f'No module named {name!r}', name=name)\n"
        "sys.meta_path.insert(0, Missing())\n"
        "[sys.modules.pop(n) for n in list(sys.modules) if n.startswith('gpumagic')]",
    )
    table = run(two, "%gpu cluster -o").value
    assert table[0].error == "has gpumagic 0.0.9, this kernel 0.1.0: install the same there"
    assert table[1].error == "gpumagic is not installed there: pip install gpumagic"
    with pytest.raises(UsageError, match=r"no engine can run the cell; engine 0: has gpumagic"):
        run(two, "%%cudatime --cluster\n1")


def test_a_result_too_large(two: Cluster, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    run(two, "%gpu cluster -q")
    monkeypatch.setattr("gpumagic.cluster.rpc.LARGEST", 1000)
    assert all(
        str(each.error).startswith("its result is too large to fetch (")
        for each in run(two, "%gpu cluster -o").value
    )


def test_a_controller_that_has_ended(
    cluster_of: Callable[..., Cluster], run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    two = cluster_of(1)
    monkeypatch.setattr("gpumagic.cluster.connection.PATIENCE", 1.0)
    run(two, "%gpu cluster -q")
    two.end_controller()
    with pytest.raises(UsageError, match=r"the controller .* does not answer: has it ended\?"):
        run(two, "%gpu cluster --timeout 1s")
    with pytest.raises(UsageError, match="does not answer: has it ended"):
        run(two, f"%gpu cluster {two.file}")


# --- finding a cluster -------------------------------------------------------------------------


def test_no_cluster(run_cell: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    with pytest.raises(UsageError) as raised:
        run_cell("%gpu cluster")
    expected = "no cluster runs in profile 'default'; start one with: ipcluster start -n 4"
    assert str(raised.value) == expected
    (tmp_path / "profile_mine" / "security").mkdir(parents=True)
    with pytest.raises(UsageError) as raised:
        run_cell("%gpu cluster mine")
    assert str(raised.value) == expected.replace("default", "mine") + " --profile=mine"
    with pytest.raises(UsageError) as raised:
        run_cell("%gpu cluster other")
    assert str(raised.value) == "there is no profile 'other'; there are: mine"


def test_no_such_file(run_cell: Run, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"there is no connection file nowhere\.json"):
        run_cell("%gpu cluster nowhere.json")
    (tmp_path / "wrong.json").write_text('{"a": 1}')
    with pytest.raises(UsageError, match=r"wrong\.json is no connection file of ipyparallel's"):
        run_cell(f"%gpu cluster {tmp_path / 'wrong.json'}")


def test_the_cluster_of_a_profile(
    two: Cluster, run_cell: Run, monkeypatch: Any, tmp_path: Path
) -> None:
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    (tmp_path / "profile_lab").symlink_to(two.folder / "profile")
    assert "2 engines on 1 host (profile lab)" in run_cell("%gpu cluster lab").text
    assert "(profile lab)" in run_cell("%gpu cluster").text  # it stays the one that is meant


def test_the_cluster_of_px(two: Cluster, ip: Any, run_cell: Run) -> None:
    view = two.client[:]
    from ipyparallel.client.magics import ParallelMagics

    before = {kind: dict(magics) for kind, magics in ip.magics_manager.magics.items()}
    magics = ParallelMagics(ip, view)
    ip.magics_manager.register(magics)
    assert "2 engines on 1 host (the one that %px uses)" in run_cell("%gpu cluster").text
    for kind, names in before.items():
        ip.magics_manager.magics[kind].clear()
        ip.magics_manager.magics[kind].update(names)
    ip.configurables.remove(magics)


def test_px_comes_and_goes_with_gpumagic(two: Cluster, ip: Any, run: Run) -> None:
    run(two, "%gpu cluster -q")
    assert "px" in ip.magics_manager.magics["cell"]
    ip.extension_manager.unload_extension("gpumagic")
    assert "px" not in ip.magics_manager.magics["cell"]
    ip.extension_manager.load_extension("gpumagic")


def test_without_ipyparallel(run_cell: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ipyparallel", None)
    for line in ("%gpu cluster", "%gpu pin", "%gpu off --cluster", "%cudatime --cluster 1"):
        with pytest.raises(UsageError, match=r"install it with: pip install 'gpumagic\[cluster\]'"):
            run_cell(line)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("%gpu off -t 0", "-t is about a cluster; for example: %gpu off --cluster -t 0:4"),
        ("%gpu --share", "--share is about a cluster"),
        ("%gpu cluster a b", "one profile or connection file, not 2"),
        ("%gpu pin 0", "it takes no '0'"),
        ("%gpu dist up", "write %gpu dist init, or %gpu dist down"),
        ("%gpu off --cluster --restart --keep x", "--keep is for this kernel"),
        ("%gpu off --cluster --soft", "--soft is for this kernel"),
        ("%gpu off --cluster --threads 2", "--threads is for this kernel"),
        ("%gpu off --cluster --idle", "--idle goes with auto"),
        ("%gpu auto 2 --cluster --wait 5", "--wait is for this kernel"),
        ("%gpu off --cluster --share", "--share goes with %gpu pin"),
        ("%gpu pin --backend gloo", "--backend goes with %gpu dist"),
        ("%gpu dist down --backend nccl", "--backend goes with %gpu dist init"),
        ("%gpu dist --backend nccl", "--backend goes with %gpu dist init"),
        ("%gpu cluster --every 5", "--every is for this kernel"),
        ("%gpu cluster --for 3", "--for is for this kernel"),
        ("%gpu watch --cluster", "%gpu watch is for this kernel; for the engines: %gpu cluster"),
        ("%gpu ps --cluster", "for the engines: %gpu cluster -p"),
        ("%gpu doctor --cluster", "%gpu doctor is for this kernel"),
        ("%gpumem --cluster -f foo x = 1", "-f is for this kernel alone"),
        ("%gpu cluster --restart", "restarts nothing"),
        ("%cudatime --barrier 1", "in no group of torch.distributed"),
        ("%gpu pin --per-engine 0", "'0' is not a number of GPUs"),
        ("%gpumem --cluster", "needs a statement"),
        ("%gpumem -t 0 1", "-t goes with --cluster"),
        ("%cudatime -t 0 1", "-t goes with --cluster"),
        ("%%cudatime --cluster --name a\n1", "--name is for this kernel alone"),
        ("%%cudatime --cluster --trace a.json\n1", "--trace is for this kernel alone"),
        ("%%gpumem --cluster --lines\n1", "--lines is for this kernel alone"),
        ("%%gpu off --cluster\n1", "%%gpu is for this kernel"),
    ],
)
def test_bad_input(run_cell: Run, two_or_none: None, line: str, reason: str) -> None:
    with pytest.raises(UsageError) as raised:
        run_cell(line)
    assert reason in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.fixture
def two_or_none(request: pytest.FixtureRequest) -> None:
    """A bad line is refused before, or after, there is a connection."""
    if "dist up" in request.node.name:
        cluster = request.getfixturevalue("two")
        request.getfixturevalue("run")(cluster, "%gpu cluster -q")


def test_nothing_of_it_is_imported_before(child_environment: Any) -> None:
    code = (
        "import sys\n"
        "from IPython.core.interactiveshell import InteractiveShell\n"
        "ip = InteractiveShell.instance()\n"
        "ip.run_line_magic('load_ext', 'gpumagic')\n"
        "ip.run_line_magic('gpu', '')\n"
        "print([n for n in sys.modules if n.split('.')[0] == 'ipyparallel'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=child_environment(),
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stdout.splitlines()[-1] == "[]"


def test_an_engine_that_goes_between_two_questions(
    cluster_of: Callable[..., Cluster], run: Run
) -> None:
    from gpumagic.cluster import rpc

    cluster = cluster_of(2)
    from gpumagic.cluster import connection

    known = connection.connect(cluster.client)
    cluster.kill(1)
    wait_for(lambda: 1 not in cluster.client.ids)
    replies = rpc.call(known, [0, 1], "device_table")
    assert replies[0].error is None
    assert replies[1].error == "the engine is gone"
