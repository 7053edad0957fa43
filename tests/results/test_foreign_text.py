"""Results with text from outside: nothing in it controls the terminal or the page."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from gpumagic.cluster.results import ClusterTable, EngineResult
from gpumagic.results.base import as_html, as_text
from gpumagic.results.devices import Device, DeviceTable
from gpumagic.results.memory.out_of_memory import OutOfMemory
from gpumagic.results.processes import Process

HOSTILE = "\x1b[2J\x1b]0;owned\x07\nline\r\x9b31m\u202egnp\u2066\u200b\U000e0041é 漢"


def everything_hostile() -> Iterator[Any]:
    process = Process(7, 2**30, user=HOSTILE, command=HOSTILE)
    device = Device(0, name=HOSTILE, uuid=HOSTILE, error=HOSTILE, processes=(process,))
    yield DeviceTable(
        (device, Device(1, name=HOSTILE, processes=(process,))),
        environment={"CUDA_VISIBLE_DEVICES": HOSTILE},
        show_processes=True,
        notes=(HOSTILE,),
    )
    yield DeviceTable(error=HOSTILE)
    table = DeviceTable((device,), show_processes=True)
    yield ClusterTable((EngineResult(0, error=HOSTILE), EngineResult(1, HOSTILE, table)), HOSTILE)
    yield OutOfMemory(where=HOSTILE, source=HOSTILE, name=HOSTILE, device=0)


@pytest.mark.parametrize("result", [*everything_hostile()], ids=lambda each: type(each).__name__)
def test_what_is_drawn_is_clean(result: Any) -> None:
    assert repr(result).isprintable()
    for drawn in (as_text(result, 500), as_html(result)):
        assert "owned" in drawn
        bad = {c for c in drawn if not c.isprintable() and c != "\n"}
        assert not bad
        assert "\nline" not in drawn
