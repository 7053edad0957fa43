"""Results under other conditions than stored: compared, and failed only with ``--strict``."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpumagic.errors import RegressionError
from gpumagic.magics import baseline
from gpumagic.magics.baseline import Baseline
from gpumagic.memory import regression as memory_regression
from gpumagic.results import CudaTiming, DeviceMemoryDelta, MemoryDelta, Sample
from gpumagic.results.conditions import Conditions
from gpumagic.timing import regression as timing_regression

HERE = Conditions(devices={0: "NVIDIA H200"}, driver="570.12", torch="2.9.0", cuda="12.8")
ELSEWHERE = replace(HERE, devices={0: "NVIDIA A100"})
DIFFERENCE = "device NVIDIA A100 instead of NVIDIA H200"


def timing(size: float, conditions: Conditions) -> CudaTiming:
    times = Sample(tuple(size * (1 + 0.01 * place) for place in range(9)))
    return CudaTiming(times, times, times, conditions=conditions)


def memory(size: float, conditions: Conditions) -> MemoryDelta:
    return MemoryDelta({0: DeviceMemoryDelta(0, 0, int(size))}, conditions=conditions)


Make = Callable[[float, Conditions], Any]
KINDS = pytest.mark.parametrize(
    ("make", "against"),
    [(timing, timing_regression.against), (memory, memory_regression.against)],
    ids=["timing", "memory"],
)


@pytest.fixture
def finish(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., list[Any]]:
    """Compare a result with a stored one as ``--fail-above 10%`` does; return what is shown."""
    shown: list[Any] = []
    monkeypatch.setattr(baseline, "show", lambda shell, result: shown.append(result))

    def compare(now: Any, before: Any, against: Any, *, strict: bool = False) -> list[Any]:
        file = str(tmp_path / "stored.json")
        before.save(file)
        options = Namespace(save=None, against=file, fail_above=0.1, strict=strict, quiet=False)
        Baseline(options, type(before), against).finish(None, now)
        return shown

    return compare


@KINDS
def test_the_same_conditions_are_not_mentioned(finish: Any, make: Make, against: Any) -> None:
    (compared,) = finish(make(1000, HERE), make(1000, HERE), against, strict=True)
    assert compared.notes == ()


@KINDS
def test_other_conditions_are_a_note(finish: Any, make: Make, against: Any) -> None:
    (compared,) = finish(make(9000, ELSEWHERE), make(1000, HERE), against)
    assert compared.notes == (f"measured under other conditions: {DIFFERENCE}",)


@KINDS
def test_strict_fails_under_other_conditions(finish: Any, make: Make, against: Any) -> None:
    with pytest.raises(RegressionError) as raised:
        finish(make(1000, ELSEWHERE), make(1000, HERE), against, strict=True)
    assert str(raised.value) == f"other conditions than stored (--strict): {DIFFERENCE}"
    with pytest.raises(RegressionError, match=r"9\.00 times as long|peak 8\.79 KiB"):
        finish(make(9000, ELSEWHERE), make(1000, HERE), against, strict=True)
