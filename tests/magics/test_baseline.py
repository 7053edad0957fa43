"""Results under other conditions than stored: compared, and not failed."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpumagic.errors import RegressionError, SpecError
from gpumagic.magics import baseline
from gpumagic.magics.baseline import Baseline
from gpumagic.results.base import Conditions
from gpumagic.results.memory import DeviceMemoryDelta, MemoryDelta
from gpumagic.results.timing import CudaTiming, Sample

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
    ("make", "guard"),
    [(timing, baseline.TIMES), (memory, baseline.MEMORY)],
    ids=["timing", "memory"],
)


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return the results that have been shown."""
    results: list[Any] = []
    monkeypatch.setattr(baseline, "show", lambda shell, result: results.append(result))
    return results


@pytest.fixture
def finish(shown: list[Any], tmp_path: Path) -> Callable[..., list[Any]]:
    """Compare a result with a stored one as ``--fail-above 10%`` does; return what is shown."""

    def compare(now: Any, before: Any, guard: Any, **more: Any) -> list[Any]:
        file = str(tmp_path / "stored.json")
        before.save(file)
        options = Namespace(save=None, against=file, fail_above=0.1, quiet=False)
        vars(options).update(more)
        shell = SimpleNamespace(var_expand=lambda text, depth: text, user_ns={})
        Baseline(shell, options, guard).finish(shell, now)
        return shown

    return compare


@KINDS
def test_the_same_conditions_are_not_mentioned(finish: Any, make: Make, guard: Any) -> None:
    (compared,) = finish(make(1000, HERE), make(1000, HERE), guard)
    assert compared.notes == ()


@KINDS
def test_other_conditions_are_a_note(finish: Any, make: Make, guard: Any) -> None:
    now, before = make(9000, ELSEWHERE), make(1000, HERE)
    shown = finish(now, before, guard, fail_above=None)
    assert "\n".join(map(str, shown)).count(DIFFERENCE) == 1
    shown.clear()
    assert finish(now, before, guard, fail_above=None, quiet=True) == []


@KINDS
@pytest.mark.parametrize("quiet", [False, True])
def test_a_limit_that_was_not_applied_is_said(
    finish: Any, make: Make, guard: Any, quiet: bool
) -> None:
    *_, said = finish(make(9000, ELSEWHERE), make(1000, HERE), guard, quiet=quiet)
    assert said.notes == (
        f"--fail-above was not applied: other conditions than those stored: {DIFFERENCE}",
    )


@KINDS
def test_a_regression_is_shown_before_it_fails(
    finish: Any, shown: list[Any], make: Make, guard: Any
) -> None:
    with pytest.raises(RegressionError, match=r"^(9 times as long|cuda:0: peak 9,000 B)"):
        finish(make(9000, HERE), make(1000, HERE), guard)
    (compared,) = shown
    assert compared.notes == ()


def test_a_comparison_without_a_verdict_is_said(finish: Any) -> None:
    vague = Sample((0.7, 0.8, 0.9, 1.0, 1.3, 1.6, 1.9))
    now, before = (CudaTiming(vague, vague, vague, conditions=HERE) for _ in range(2))
    _, said = finish(now, before, baseline.TIMES)
    assert str(said).startswith("--fail-above was not applied: no verdict: from 0.368 to 2.71")


NO_FIGURES = MemoryDelta(error="torch has not used a GPU in this process")


def test_a_result_without_figures_is_not_saved(tmp_path: Path) -> None:
    file = tmp_path / "peak.json"
    options = Namespace(save=str(file), against=None, fail_above=None, quiet=True)
    shell = SimpleNamespace(var_expand=lambda text, depth: text, user_ns={})
    with pytest.raises(SpecError, match=r"^--save: torch has not used a GPU in this process: "):
        Baseline(shell, options, baseline.MEMORY).finish(shell, NO_FIGURES)
    assert not file.exists()
    Baseline(shell, options, baseline.MEMORY).finish(shell, memory(1000, HERE))
    assert file.exists()
