"""Results under other conditions than stored: compared, and failed only with ``--strict``."""

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
from gpumagic.results import CudaTiming, DeviceMemoryDelta, MemoryDelta, Sample
from gpumagic.results.conditions import Conditions

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
        options = Namespace(save=None, against=file, fail_above=0.1, strict=False, quiet=False)
        vars(options).update(more)
        shell = SimpleNamespace(var_expand=lambda text, depth: text, user_ns={})
        Baseline(shell, options, guard).finish(shell, now)
        return shown

    return compare


@KINDS
def test_the_same_conditions_are_not_mentioned(finish: Any, make: Make, guard: Any) -> None:
    (compared,) = finish(make(1000, HERE), make(1000, HERE), guard, strict=True)
    assert compared.notes == ()


@KINDS
def test_other_conditions_are_a_note(finish: Any, make: Make, guard: Any) -> None:
    now, before = make(9000, ELSEWHERE), make(1000, HERE)
    (compared,) = finish(now, before, guard, fail_above=None)
    assert compared.notes == (f"measured under other conditions: {DIFFERENCE}",)
    assert len(finish(now, before, guard, fail_above=None, quiet=True)) == 1, "nothing more"


@KINDS
@pytest.mark.parametrize("quiet", [False, True])
def test_a_limit_that_was_not_applied_is_said(
    finish: Any, make: Make, guard: Any, quiet: bool
) -> None:
    (shown,) = finish(make(9000, ELSEWHERE), make(1000, HERE), guard, quiet=quiet)
    assert shown.notes == (
        f"measured under other conditions: {DIFFERENCE}; --fail-above was not applied, "
        "--strict fails the cell then",
    )


@KINDS
def test_a_regression_is_shown_before_it_fails(
    finish: Any, shown: list[Any], make: Make, guard: Any
) -> None:
    with pytest.raises(RegressionError, match=r"^(9\.00 times as long|cuda:0: peak 8\.79 KiB)"):
        finish(make(9000, HERE), make(1000, HERE), guard)
    (compared,) = shown
    assert compared.notes == ()


def test_a_comparison_without_a_verdict_is_said(finish: Any, shown: list[Any]) -> None:
    vague = Sample((0.7, 0.8, 0.9, 1.0, 1.3, 1.6, 1.9))
    now, before = (CudaTiming(vague, vague, vague, conditions=HERE) for _ in range(2))
    _, said = finish(now, before, baseline.TIMES)
    assert str(said).startswith(
        "--fail-above: no verdict: the 95 % interval of the ratio, 0.62 to 1.62"
    )


def test_what_has_gone_to_the_cpu_of_the_same_machine_is_a_regression(
    finish: Any, shown: list[Any]
) -> None:
    on_cpu = replace(timing(9000, replace(HERE, devices={})), gpu=None)
    with pytest.raises(RegressionError, match=r"^9\.00 times as long"):
        finish(on_cpu, timing(1000, HERE), baseline.TIMES)
    (compared,) = shown
    assert "other conditions" not in str(compared)
    assert "now has no GPU time" in str(compared)


@KINDS
def test_strict_fails_under_other_conditions(
    finish: Any, shown: list[Any], make: Make, guard: Any
) -> None:
    with pytest.raises(RegressionError) as raised:
        finish(make(1000, ELSEWHERE), make(1000, HERE), guard, strict=True)
    assert str(raised.value) == f"other conditions than stored (--strict): {DIFFERENCE}"
    with pytest.raises(RegressionError, match=r"9\.00 times as long|peak 8\.79 KiB") as raised:
        finish(make(9000, ELSEWHERE), make(1000, HERE), guard, strict=True)
    assert str(raised.value).endswith(f"; other conditions than stored (--strict): {DIFFERENCE}")
    assert [each.notes for each in shown] == [
        (f"measured under other conditions: {DIFFERENCE}",)
    ] * 2


WITHOUT = Conditions(torch="2.9.0", cuda="12.8")
NO_FIGURES = MemoryDelta(error="torch has not used a GPU in this process", conditions=WITHOUT)
ON_HOST = replace(timing(9000, WITHOUT), gpu=None)


def test_a_result_without_figures_is_not_saved(tmp_path: Path) -> None:
    file = tmp_path / "peak.json"
    options = Namespace(save=str(file), against=None, fail_above=None, strict=False, quiet=True)
    shell = SimpleNamespace(var_expand=lambda text, depth: text, user_ns={})
    with pytest.raises(SpecError, match=r"^--save: torch has not used a GPU in this process: "):
        Baseline(shell, options, baseline.MEMORY).finish(shell, NO_FIGURES)
    assert not file.exists()
    Baseline(shell, options, baseline.MEMORY).finish(shell, memory(1000, HERE))
    assert file.exists()


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(
    ("host", "make", "guard"),
    [(ON_HOST, timing, baseline.TIMES), (NO_FIGURES, memory, baseline.MEMORY)],
    ids=["timing", "memory"],
)
def test_a_machine_without_a_gpu_is_said_and_fails_only_with_strict(
    finish: Any, shown: list[Any], host: Any, make: Make, guard: Any, reverse: bool
) -> None:
    results = [host, make(1000, HERE)]
    now, before = reversed(results) if reverse else results
    device = "NVIDIA H200 instead of none" if reverse else "none instead of NVIDIA H200"
    finish(now, before, guard)
    assert f"measured under other conditions: device {device}; driver" in str(shown[-1])
    if guard is baseline.MEMORY:
        assert "torch has not used a GPU" in str(shown[-1])
    with pytest.raises(RegressionError, match=f"--strict.*device {device}"):
        finish(now, before, guard, strict=True)
