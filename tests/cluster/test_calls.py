"""Calls on engines: who replies, who does not, and why."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from IPython.core.error import UsageError

from gpumagic.cluster import calls, connection, engine
from gpumagic.results.devices import Device, DeviceTable
from tests.support.clusters import Cluster
from tests.support.shells import Ran
from tests.support.waiting import until

Run = Callable[..., Ran]


def test_a_busy_engine_does_not_delay_others(
    two_engines: Cluster, run: Run, busy_engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(two_engines, "%gpu cluster -q")
    with busy_engine(two_engines, 1), monkeypatch.context() as patch:
        patch.setattr(calls, "TIMEOUT", 8.0)
        table = run(two_engines, "%gpu cluster -o").value
    assert table[0].error is None
    assert table[1].error == "no answer within 8 s: it is busy, or has lost its connection"
    assert "1 of 2 engines" in str(table)
    # The question was taken back: it does not wait at the engine until that has time.
    assert run(two_engines, "%gpu cluster -o").value[1].error is None


def test_another_version_and_none(cluster_of: Callable[..., Cluster], run: Run) -> None:
    two_engines = cluster_of(2)
    two_engines.run(0, "import gpumagic.cluster.engine as r; r.__version__ = '0.0.9'")
    two_engines.run(
        1,
        "import sys\n"
        "class Missing:\n"
        "    def find_spec(self, name, *rest):\n"
        "        if name.split('.')[0] == 'gpumagic':\n"
        "            raise ModuleNotFoundError(f'No module named {name!r}', name=name)\n"
        "sys.meta_path.insert(0, Missing())\n"
        "[sys.modules.pop(n) for n in list(sys.modules) if n.startswith('gpumagic')]",
    )
    table = run(two_engines, "%gpu cluster -o").value
    assert table[0].error == "has gpumagic 0.0.9, this process 0.1.0: install the same there"
    assert table[1].error == "gpumagic is not installed there: pip install gpumagic"
    run(two_engines, "%%cudatime --cluster -v timing\n1", raising=False)
    assert run(two_engines, "timing").value.failed == table.failed


def test_a_controller_that_has_ended(
    cluster_of: Callable[..., Cluster], run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = cluster_of(1)
    run(cluster, "%gpu cluster -q")
    monkeypatch.setattr(calls, "TIMEOUT", 0.5)
    monkeypatch.setattr(connection, "_TIMEOUT", 1.0)
    cluster.end_controller()
    assert "no answer within 0.5 s" in run(cluster, "%gpu cluster -o").value[0].error
    with pytest.raises(UsageError, match=r"the controller .* does not answer: has it ended\?"):
        run(cluster, "%gpu cluster")


def test_what_one_engine_sends_ends_no_table(cluster_of: Callable[..., Cluster], run: Run) -> None:
    """It may be anything: the others are shown all the same."""
    two_engines = cluster_of(2)
    two_engines.run(0, "import gpumagic.cluster.engine as e; e.Visible = lambda *_: 'nonsense'")
    table = run(two_engines, "%gpu cluster -o").value
    assert table.failed == {0: "it has left no result"}
    assert len(table[1].value) == 4


def test_a_table_of_more_devices_than_a_machine_has_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each is a row."""
    for count, error in ((1024, None), (1025, "it has left no result")):
        value = engine.Visible(DeviceTable(tuple(map(Device, range(count)))), ())
        monkeypatch.setattr(calls, "_payload", lambda _, value=value: ("host", value))
        assert calls.result(0, object(), engine.Visible).error == error


def test_an_engine_that_goes_between_two_questions(cluster_of: Callable[..., Cluster]) -> None:
    cluster = cluster_of(2)
    known = connection.connect(cluster.client)
    cluster.kill(1)
    until(lambda: 1 not in cluster.client.ids)
    replies = calls.call(known, dict.fromkeys((0, 1), calls.source(engine.devices)), engine.Visible)
    assert [each.error for each in replies] == [None, "the engine is gone"]


class EngineRaisedError(Exception):
    """As ipyparallel's ``RemoteError``."""

    def __init__(self, ename: str, evalue: str) -> None:
        self.ename, self.evalue = ename, evalue


HOSTILE = "\x1b]0;owned\x07\u202e"


@pytest.mark.parametrize(
    "error",
    [
        EngineRaisedError(HOSTILE + "x" * 10**6, "why"),
        EngineRaisedError("ValueError", f"{HOSTILE}\nsecond line"),
        EngineRaisedError("SpecError", "x\r\x85\u2028" * 10**6),
    ],
)
def test_why_there_is_no_answer_is_one_short_line(error: Exception) -> None:
    """In the result too, not only where it is shown."""
    described = calls.described(error)
    assert described.isprintable()
    assert len(described) <= 700
    assert "second" not in described


def test_an_error_without_a_text_is_its_name() -> None:
    assert calls.described(EngineRaisedError("KeyboardInterrupt", "")) == "KeyboardInterrupt"
