"""An engine's reply is data: gpumagic unpickles none of it, and checks its type."""

from __future__ import annotations

import concurrent.futures
import inspect
import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from IPython.core.error import UsageError

import gpumagic
from gpumagic import __version__, results
from gpumagic.cluster import connection, engine, rpc
from gpumagic.results import (
    CudaTiming,
    DeviceTable,
    Kernel,
    KernelReport,
    MemoryDelta,
    Sample,
    Selection,
)
from gpumagic.results.base import plain
from gpumagic.results.quality import Quality
from tests.cluster.conftest import INITIALISE_CUDA, wait_for
from tests.support.clusters import Cluster
from tests.support.shells import Ran

Run = Callable[..., Ran]

COUNT = "__import__('torch').cuda.device_count()"

HERE = engine.Place("host", 7, 0, 2, "gloo", "machine", "127.0.0.1:1")


TIMING = CudaTiming(
    Sample((1.0, 2.0)),
    Sample((1.5,)),
    Sample((0.0,)),
    {0: Sample((1.0,)), 3: Sample((2,))},
    bound="gpu",
    quality=Quality(0.1, "precision", throttled={0: ("heat",)}, flushed={1: 2}),
    kernels=KernelReport((Kernel("k", 1, 1.0, 1.0, 1.0, (0,)),), busy={0: 0.5}),
    notes=("a", "b"),
)


DELTA = MemoryDelta({1: gpumagic.results.memory.DeviceMemoryDelta(1, 2, 3)}, notes=("n",))


def answered(function: str, value: Any) -> Any:
    text = json.dumps(plain(value))
    answer = rpc._reply(0, rpc._type_of(function), ("ok", text))
    assert answer.error is None, answer.error
    return answer.value


def test_what_is_sent_arrives() -> None:
    table = gpumagic.devices()
    assert answered("device_table", (HERE, table, ("GPU-1",), ())) == (HERE, table, ("GPU-1",), ())
    chosen = Selection("0", {"CUDA_VISIBLE_DEVICES": None}, "applied", tuple(table)[:2])
    assert answered("choose", (HERE, chosen, False)) == (HERE, chosen, False)
    assert answered("prepare", HERE) == HERE
    for result in (TIMING, DELTA, MemoryDelta(), None):
        assert answered("partial_result", result) == result
    for usual in (("127.0.0.1", 1, True, None), ("10.0.0.1", 1, False, "/x")):
        assert answered("rendezvous", usual) == usual
    assert (answered("join", "gloo"), answered("leave", True)) == ("gloo", True)


def test_every_function_says_what_it_returns() -> None:
    for function in engine.FUNCTIONS:
        assert rpc._type_of(function) is not Any


class Evil:
    def __reduce__(self) -> Any:
        return (pytest.fail, ("it was unpickled",))


@pytest.mark.parametrize(
    "outcome",
    [
        ("ok", pickle.dumps(Evil())),
        ("ok", pickle.dumps(HERE)),
        ("ok", "not JSON"),
        ("ok", "[" * 100_000),
        ("ok", "null"),
        ("ok", "NaN"),
        ("ok", "{}"),
        ("ok", json.dumps({**plain(HERE), "extra": 1})),
        ("ok", json.dumps({**plain(HERE), "pid": "7"})),
        ("ok", json.dumps({**plain(HERE), "pid": True})),
        ("ok", json.dumps({**plain(HERE), "host": None})),
        ("ok", json.dumps({**plain(HERE), "host": {}})),
        ("ok", json.dumps([plain(HERE)])),
        ("ok", json.dumps({**plain(HERE), "pid": 10**400})),
        ("ok", json.dumps({**plain(HERE), "pid": 7}).replace("7", "9" * 5000)),
        ("ok",),
        "ok",
        None,
        7,
        ("large", "much"),
        ("large", 10**400),
        ("large", -1),
        ("large", True),
        (7, "much"),
        ("version", 7),
        ("error", 7),
        ("?", "?"),
        {},
    ],
)
def test_an_invalid_reply(outcome: Any) -> None:
    answer = rpc._reply(3, rpc._type_of("prepare"), outcome)
    assert answer.value is None
    assert answer.error is not None
    assert answer.error.startswith("its reply is not valid")


def test_an_answer_of_another_kind() -> None:
    for function, value in (
        ("device_table", (HERE, DeviceTable(), ())),
        ("device_table", (HERE, DELTA, (), ())),
        ("partial_result", HERE),
        ("choose", (HERE, Selection("0", {}, "no such status"), False)),  # type: ignore[arg-type]
        ("partial_result", {**plain(TIMING), "per_device": {"x": plain(Sample((1.0,)))}}),
        ("partial_result", {**plain(TIMING), "wall": {"all": []}}),
        ("partial_result", {**plain(TIMING), "bound": "moon"}),
        ("partial_result", {**plain(TIMING), "compile_time": float("inf")}),
        ("partial_result", {**plain(TIMING), "compile_time": 10**400}),
        ("partial_result", {**plain(TIMING), "busy": {"１": 1.0}}),
    ):
        assert rpc._reply(0, rpc._type_of(function), ("ok", json.dumps(plain(value)))).value is None


def test_an_invalid_number() -> None:
    text = json.dumps(plain(TIMING)).replace('"compile_time": 0.0', '"compile_time": 1e999')
    assert "1e999" in text
    assert rpc._reply(0, rpc._type_of("partial_result"), ("ok", text)).value is None


class EngineRaisedError(Exception):
    """As ipyparallel's ``RemoteError``."""

    def __init__(self, ename: str, evalue: str) -> None:
        self.ename, self.evalue = ename, evalue


HOSTILE = "\x1b]0;owned\x07\u202e"


@pytest.mark.parametrize(
    "outcome",
    [
        EngineRaisedError("ValueError", HOSTILE + "x" * 10**6),
        EngineRaisedError(HOSTILE + "x" * 10**6, "why"),
        EngineRaisedError("ValueError", f"{HOSTILE}\nsecond line"),
        EngineRaisedError("ValueError", "x\r\x85\u2028" * 10**6),
        ("error", HOSTILE + "x" * 10**6),
        ("version", HOSTILE + "x" * 10**6),
    ],
)
def test_why_there_is_no_answer_is_one_short_line(outcome: Any) -> None:
    """In the result too, not only where it is shown."""
    error = rpc._reply(3, rpc._type_of("prepare"), outcome).error
    assert error is not None
    assert error.isprintable()
    assert len(error) <= 2000
    assert "second" not in error
    if isinstance(outcome, Exception):
        assert rpc.described(outcome) == error
        assert len(error) <= 610


def test_a_reply_that_is_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rpc, "LARGEST", 10)
    assert rpc._reply(0, rpc._type_of("leave"), ("ok", " " * 20 + "true")).value is None


def test_what_the_engine_sends_is_json(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(engine.FUNCTIONS, "device_table", lambda: (HERE, DeviceTable(), (), ()))
    kind, content = engine.answer(__version__, "device_table", {}, 10**6)
    assert kind == "ok"
    assert json.loads(content)[0]["host"] == "host"


def test_no_pickle_in_the_questions() -> None:
    """ipyparallel has its own; gpumagic's requests and replies have none."""
    for module in (rpc, engine, results):
        assert "pickle" not in Path(inspect.getfile(module)).read_text()


# --- engines -----------------------------------------------------------------------------------


def test_a_busy_engine_does_not_delay_others(
    two_engines: Cluster, run: Run, busy_engine: Any
) -> None:
    run(two_engines, "%gpu cluster -q")
    with busy_engine(two_engines, 1):  # it ends only after we have been answered
        table = run(two_engines, "%gpu cluster -o --timeout 8s").value
        group = run(two_engines, "%gpu dist -o --timeout 500ms").value
    assert table[0].table is not None
    assert table[1].table is None
    assert table[1].error == "no answer within 8 s: it is busy, or has lost its connection"
    assert [each.engine for each in table.silent] == [1]
    assert "engine 1: no answer within 8 s" in str(table)
    assert "1 of 2 engines" in str(table)
    assert group.failed[1].startswith("no answer within 0.5 s")
    # The question was taken back: it does not wait at the engine until that has time.
    assert run(two_engines, "%gpu cluster -o").value[1].error is None


def test_nothing_outstanding_is_left(two_engines: Cluster, run: Run) -> None:
    run(two_engines, "%gpu cluster -q")

    (client,) = connection._clients.values()
    client.wait(timeout=300)
    assert not client.outstanding
    assert not client.results


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
    assert table[0].error == "has gpumagic 0.0.9, this kernel 0.1.0: install the same there"
    assert table[1].error == "gpumagic is not installed there: pip install gpumagic"
    with pytest.raises(UsageError, match=r"no engine can run the cell; engine 0: has gpumagic"):
        run(two_engines, "%%cudatime --cluster\n1")


def test_a_result_too_large(
    two_engines: Cluster, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(two_engines, "%gpu cluster -q")
    monkeypatch.setattr("gpumagic.cluster.rpc.LARGEST", 1000)
    assert all(
        str(each.error).startswith("its result is too large to fetch (")
        for each in run(two_engines, "%gpu cluster -o").value
    )


def test_a_controller_that_has_ended(
    cluster_of: Callable[..., Cluster], run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    two_engines = cluster_of(1)
    monkeypatch.setattr("gpumagic.cluster.connection.CONTROLLER_TIMEOUT", 1.0)
    run(two_engines, "%gpu cluster -q")
    two_engines.end_controller()
    with pytest.raises(UsageError, match=r"the controller .* does not answer: has it ended\?"):
        run(two_engines, "%gpu cluster --timeout 1s")
    with pytest.raises(UsageError, match="does not answer: has it ended"):
        run(two_engines, f"%gpu cluster '{two_engines.file}'")


def test_an_engine_that_goes_between_two_questions(
    cluster_of: Callable[..., Cluster], run: Run
) -> None:

    cluster = cluster_of(2)
    from gpumagic.cluster import connection

    known = connection.connect(cluster.client)
    cluster.kill(1)
    wait_for(lambda: 1 not in cluster.client.ids)
    replies = rpc.call(known, [0, 1], "device_table")
    assert replies[0].error is None
    assert replies[1].error == "the engine is gone"


def test_an_interrupt_withdraws_what_a_busy_engine_has_not_begun(
    two_engines: Cluster, run: Run, busy_engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seconds later it would have chosen."""
    two_engines.run(0, f"{INITIALISE_CUDA}; weights = 5")
    run(two_engines, "%gpu cluster -q")

    wait = concurrent.futures.wait
    waits: list[object] = []

    def interrupted(futures: Any, timeout: float) -> object:
        waits.append(futures)
        if len(waits) == 1:
            raise KeyboardInterrupt
        return wait(futures, 60)  # however slow the machine: the engine does confirm

    with busy_engine(two_engines, 0), monkeypatch.context() as patch:
        patch.setattr("gpumagic.cluster.rpc.concurrent.futures.wait", interrupted)
        with pytest.raises(
            UsageError, match="interrupted: engines that had not begun are unchanged"
        ):
            run(two_engines, "%gpu off --cluster -t 0 -q")
    assert len(waits) == 2
    assert two_engines.value(0, "weights") == 5
    assert two_engines.value(0, COUNT) == 4
