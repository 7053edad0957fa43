"""The functions that run on an engine, called in this process."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from IPython.core.interactiveshell import InteractiveShell

from gpumagic import __version__
from gpumagic.cluster import distributed, engine
from gpumagic.results import CudaTiming
from gpumagic.results.deserialize import from_json
from tests.support.shells import Ran


@pytest.fixture
def request_cell(
    ip: InteractiveShell, run_cell: Callable[..., Ran]
) -> Iterator[Callable[..., tuple[Ran, list[Any]]]]:
    """``request_cell(line, cell, awaits=False, …)``: run a client's cell, and the payload."""

    def request_cell(line: str, cell: str | None, **changes: Any) -> tuple[Ran, list[Any]]:
        values = {"version": __version__, "client": "me", "run": 1, "ungrouped": True}
        values |= {"largest": 10**6, **changes}
        awaits = values.pop("awaits", False)
        source = f"engine.run_cell{('cudatime', line, cell, *values.values())!r}"
        if awaits:
            source = "await " + source.replace("run_cell", "run_async_cell")
        ip.user_ns["engine"] = engine
        ran = run_cell(source, raising=False)
        written = ip.payload_manager.read_payload()
        ip.payload_manager.clear_payload()
        return ran, [tuple(each["reply"]) for each in written]

    yield request_cell
    engine._partial_results.clear()


def test_the_payload_has_the_result(request_cell: Any, ip: InteractiveShell) -> None:
    ran, ((kind, content),) = request_cell("", "x = 6\nx * 7")
    assert (ran.value, ran.text, ip.user_ns["x"]) == (42, "", 6)
    assert kind == "ok"
    place, timing = from_json(tuple[engine.Place, CudaTiming], content)
    assert place.pid == os.getpid()
    assert not timing.partial
    ran, ((kind, content),) = request_cell("-n 3 -r 2 -w 0 --", "1")
    assert from_json(tuple[engine.Place, CudaTiming], content)[1].repeat == 2
    ran, ((kind, content),) = request_cell("-- -x", None)
    assert ran.value == -6
    assert not [name for name in ip.user_ns if "gpumagic" in name]


def test_a_cell_that_awaits(request_cell: Any) -> None:
    cell = "import asyncio\nawait asyncio.sleep(0.01)\n7"
    ran, ((_, content),) = request_cell("", cell, awaits=True)
    assert ran.value == 7
    assert from_json(tuple[engine.Place, CudaTiming], content)[1].wall.median >= 0.98 * 0.01
    ran, written = request_cell("", f"{cell} / 0", awaits=True)
    assert isinstance(ran.error, ZeroDivisionError)
    assert written == []
    assert engine.partial_result("me", 1) is not None


def test_the_result_of_code_that_raised_is_fetched_once(request_cell: Any) -> None:
    ran, written = request_cell("", "1 / 0", run=5)
    assert isinstance(ran.error, ZeroDivisionError)
    assert written == []
    assert engine.partial_result("other", 5) is None
    timing = engine.partial_result("me", 5)
    assert isinstance(timing, CudaTiming)
    assert timing.partial
    assert engine.partial_result("me", 5) is None
    request_cell("", "1 / 0", run=6)
    assert engine.partial_result("me", 5) is None  # not that of a later run


def test_what_an_engine_refuses(
    request_cell: Any, ip: InteractiveShell, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert request_cell("", "x = 1", version="0.0.9")[1] == [("version", __version__)]
    with monkeypatch.context() as patch:
        patch.setattr(distributed, "membership", lambda: (0, 2, "gloo"))
        assert request_cell("", "x = 1")[1] == [(engine.IN_GROUP, "")]
        assert "x" not in ip.user_ns
        assert request_cell("", "x = 1", ungrouped=False)[1][0][0] == "ok"
    assert ip.user_ns["x"] == 1
    ((kind, size),) = request_cell("", "x = 2", largest=100)[1]
    assert (kind, ip.user_ns["x"]) == ("large", 2)
    assert size > 100


def test_an_answer_is_a_kind_and_json(ip: InteractiveShell) -> None:
    kind, content = engine.answer(__version__, "prepare", {}, 10**6)
    assert (kind, json.loads(content)["pid"]) == ("ok", os.getpid())
    assert engine.answer("0.0.9", "prepare", {}, 10**6) == ("version", __version__)
    assert engine.answer(__version__, "prepare", {}, 10)[0] == "large"
    kind, content = engine.answer(__version__, "choose", {"spec": "77"}, 10**6)
    assert kind == "error"
    assert content.startswith("there is no GPU 77")
