"""Timings side by side: what is compared, and the guard against slowdowns."""

from __future__ import annotations

import random
import re
from dataclasses import replace
from typing import Any

import pytest

import gpumagic
from gpumagic.errors import RegressionError, SpecError
from gpumagic.results.base import Conditions
from gpumagic.results.timing import CudaTiming, Sample
from gpumagic.timing.comparison import check


def timing(*values: float, wall: float = 1.1, **fields: Any) -> CudaTiming:
    sample = Sample(values)
    whole = {
        "gpu": sample,
        "gpu_seen": True,
        "wall": Sample(tuple(wall * value for value in values)),
        "cpu": sample,
        "repeat": len(values),
        "loops": 1000,
    }
    return CudaTiming(**{**whole, **fields})


def about(center: float, count: int = 11, spread: float = 0.01, seed: int = 0) -> CudaTiming:
    chance = random.Random(seed)
    return timing(*(chance.gauss(center, center * spread) for _ in range(count)))


def test_faster_slower_and_neither() -> None:
    compared = gpumagic.compare(
        {"a": about(0.01), "b": about(0.005, seed=1), "c": about(0.01, seed=2), "d": about(0.02)}
    )
    assert [entry.verdict for entry in compared] == [None, "faster", "noise", "slower"]
    assert compared.quantity == "gpu"
    assert compared.baseline == "a"
    assert compared["b"].ratio == pytest.approx(0.5, rel=0.02)
    low, high = compared["d"].interval
    assert low <= compared["d"].ratio <= high
    assert compared[0].ratio == 1
    with pytest.raises(KeyError):
        _ = compared["x"]


def test_gpu_times_of_host_bound_code_are_not_its_wall_times() -> None:
    """Twice as fast on the wall, and yet slower by what is compared: it says which that is."""
    before = replace(about(0.001), wall=Sample((0.005,) * 11), limited_by="host")
    after = replace(about(0.0012, seed=1), wall=Sample((0.0025,) * 11))
    compared = gpumagic.compare({"before": before, "after": after})
    assert compared["after"].verdict == "slower"
    said = "GPU times are compared; host-bound, with a longer wall time: before"
    assert compared.notes[0] == said
    assert "IQR of GPU" in str(compared)
    assert said not in gpumagic.compare({"before": after, "after": after}).notes


def test_the_interval_is_that_of_the_two_medians() -> None:
    (_, entry) = gpumagic.compare(timing(*[1.0] * 5, 2.0), timing(3.0, *[4.0] * 5))
    assert entry.interval == (3.0 / 2.0, 4.0 / 1.0)


def test_the_interval_has_what_is_sure_of_each_repeat() -> None:
    exact = timing(*[1.0] * 6)
    loose = timing(*[2.0] * 6, gpu_at_least=Sample((1.9,) * 4 + (0.1,) * 2))
    (_, entry) = gpumagic.compare(exact, loose)
    assert entry.interval == (0.1, 2.0)


def test_the_same_code_is_rarely_called_different() -> None:
    """The interval of a ratio is wider than the medians' own: less than 5 of 100."""
    different = 0
    for seed in range(200):
        (_, entry) = gpumagic.compare(about(1.0, seed=seed), about(1.0, seed=1000 + seed))
        different += entry.verdict != "noise"
    assert different < 10


def test_another_baseline_comes_first() -> None:
    compared = gpumagic.compare({"a": about(0.01), "b": about(0.02)}, baseline="b")
    assert [entry.name for entry in compared] == ["b", "a"]
    assert compared["a"].verdict == "faster"


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"gpu": None}, "no GPU time of b"),
        ({"gpu_at_most": True}, "only upper bounds of the GPU time of b"),
    ],
)
def test_wall_times_where_gpu_times_cannot_be_compared(fields: Any, says: str) -> None:
    """An upper bound has no ratio to a time: a quantity that both have is compared."""
    compared = gpumagic.compare(
        {"a": timing(*[0.01] * 6, wall=1.0), "b": timing(*[0.02] * 6, wall=1.5, **fields)}
    )
    assert compared.quantity == "wall"
    assert says in str(compared)
    assert compared["b"].ratio == pytest.approx(3.0)


@pytest.mark.parametrize(
    ("a", "b", "says"),
    [
        (0.01, (0.02, 0.005), "b: at least 0.5 and at most 2 times the GPU time of a"),
        (0.01, (0.02, None), "b: at most 2 times the GPU time of a"),
        ((0.01, 0.008), 0.02, "b: at least 2 and at most 2.5 times the GPU time of a"),
        ((0.01, None), (0.02, None), ""),
    ],
)
def test_what_a_bound_leaves_open_is_said(a: Any, b: Any, says: str) -> None:
    def bounded(value: Any) -> CudaTiming:
        if isinstance(value, float):
            return timing(*[value] * 6)
        upper, lower = value
        least = None if lower is None else Sample((lower,) * 6)
        return timing(*[upper] * 6, gpu_at_most=True, gpu_at_least=least)

    compared = gpumagic.compare({"a": bounded(a), "b": bounded(b)})
    assert compared.quantity == "wall"
    assert says in str(compared)
    assert ("times the GPU time" in str(compared)) == bool(says)


def test_a_bound_leaves_the_others_as_they_are() -> None:
    bound = timing(*[0.01] * 6, gpu_at_most=True, gpu_at_least=Sample((0.009995,) * 6))
    compared = gpumagic.compare({"a": timing(*[0.01] * 6), "b": timing(*[0.02] * 6), "c": bound})
    assert (compared.quantity, compared["b"].ratio, compared["b"].verdict) == ("gpu", 2.0, "slower")
    assert (compared["c"].ratio, compared["c"].verdict) == (None, None)
    assert "not known" in str(compared)
    assert "wall times are compared" not in str(compared)
    assert "c: at least 0.999 and at most 1 times the GPU time of a" in str(compared)
    # nor is anything said of what is not compared
    loose = replace(bound, wall_at_most=True)
    assert "are compared" not in str(gpumagic.compare(timing(*[0.01] * 6), loose))


def test_a_bound_can_prove_a_slowdown() -> None:
    base = timing(*[0.001] * 6)
    slow = timing(
        *[0.0029] * 6, gpu_at_most=True, gpu_at_least=Sample((0.00146,) * 6), wall_at_most=True
    )
    with pytest.raises(RegressionError, match=r"at least 1\.46 times as long as 1 by GPU time"):
        gpumagic.compare(base, slow, fail_above=0.1)
    gpumagic.compare(base, slow, fail_above=0.5)


def test_what_is_not_known_neither_fails_nor_passes() -> None:
    """Where a GPU time is a bound, wall times decide; where they are, too, nothing does."""
    base = timing(*about(1.0).wall.all, wall=1.0)
    nine = Sample(about(9.0).wall.all)
    bound = replace(base, gpu=nine, gpu_at_most=True)
    assert gpumagic.compare(base, bound, fail_above=0.1).quantity == "wall"
    slow = replace(timing(*about(1.0).wall.all, wall=2.0), gpu_at_most=True)
    with pytest.raises(RegressionError, match="2 times as long as 1 by wall time "):
        gpumagic.compare(base, slow, fail_above=0.1)
    unknown = replace(slow, wall_at_most=True)
    compared = gpumagic.compare(base, unknown, fail_above=0.1)
    assert compared[1].ratio is None
    assert "2: not checked, as the wall time of 2 is an upper bound" in str(compared)


def test_one_wall_time_that_is_a_bound_may_still_be_surely_shorter() -> None:
    """Python had returned after what the wall time is at least."""
    base = replace(timing(*[1.0] * 6, wall=1.0), gpu=None)
    for until, wall, ratio, verdict in ((0.1, 0.2, 0.2, "faster"), (0.9, 1.1, None, None)):
        bound = replace(
            base, host=Sample((until,) * 6), wall=Sample((wall,) * 6), wall_at_most=True
        )
        entry = gpumagic.compare(base, bound)[1]
        assert (entry.ratio, entry.verdict) == (ratio, verdict)
    longer = replace(base, host=Sample((3.0,) * 6), wall=Sample((4.0,) * 6), wall_at_most=True)
    assert gpumagic.compare(base, longer)[1].interval == (3.0, 4.0)
    with pytest.raises(RegressionError, match=r"4 times as long as 1 by wall time \(from 3 to 4;"):
        gpumagic.compare(base, longer, fail_above=0.1)


def test_a_difference_below_the_resolution_of_events_is_noise() -> None:
    for loops, verdict in ((1, "noise"), (99, "slower")):
        one, other = timing(*[10.0e-6] * 6, loops=loops), timing(*[10.4e-6] * 6, loops=loops)
        assert gpumagic.compare({"a": one, "b": other})["b"].verdict == verdict


def test_too_few_repeats_are_said() -> None:
    compared = gpumagic.compare({"a": about(0.01), "b": about(0.02, count=5)})
    assert compared["b"].ratio == pytest.approx(2.0, rel=0.03)
    assert compared["b"].verdict is compared["b"].interval is None
    assert "not known (" in str(compared)
    assert "fewer than 6" in str(compared)
    zero = gpumagic.compare(timing(*[0.0] * 6), about(0.02))
    assert zero[1].ratio is None
    assert "not known" in str(zero)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (({"a": about(1.0)},), "1 timing to compare, but it takes two or more"),
        ((about(1.0),), "takes two or more"),
        (({"a": 1, "b": 2},), "compares timings, not int"),
        (({"a": about(1.0)}, about(1.0)), "not both"),
    ],
)
def test_bad_arguments(arguments: Any, says: str) -> None:
    with pytest.raises(SpecError, match=says):
        gpumagic.compare(*arguments)
    with pytest.raises(SpecError, match="no timing 'x'"):
        gpumagic.compare({"a": about(1.0), "b": about(1.0)}, baseline="x")
    with pytest.raises(SpecError, match="must be a part such as"):
        gpumagic.compare(about(1.0), about(1.0), fail_above="10%")  # type: ignore[arg-type]


# --- the guard -----------------------------------------------------------------------------------


def test_slower_than_allowed_is_an_error() -> None:
    base = about(1.0)
    with pytest.raises(RegressionError, match=r"1\.\d+ times as long as a .*allowed: 1.1"):
        gpumagic.compare({"a": base, "b": about(1.3)}, fail_above=0.1)
    gpumagic.compare({"a": base, "b": about(1.05)}, fail_above=0.1)
    vague = gpumagic.compare({"a": base, "b": about(1.1, spread=0.2)}, fail_above=0.1)
    assert "b: no verdict: " in str(vague)
    gpumagic.compare({"a": base, "b": about(0.5)}, fail_above=0)


@pytest.mark.parametrize(
    ("now", "says"),
    [
        (about(1.0), None),
        (about(1.1, spread=0.2), "no verdict: from .* more repeats"),
        (
            timing(*[2.0] * 7, conditions=Conditions(devices={0: "H100"})),
            "not checked, as it was measured under other conditions: device H100 instead of A100",
        ),
    ],
)
def test_what_is_not_known_is_said(now: CudaTiming, says: str | None) -> None:
    base = timing(*about(1.0).wall.all, wall=1.0, conditions=Conditions(devices={0: "A100"}))
    compared = gpumagic.compare(base, now)
    found = check(compared, compared[1], 0.1)
    assert (found is None) == (says is None)
    if says is not None:
        assert re.match(says, str(found))


def test_too_few_repeats_cannot_be_checked() -> None:
    with pytest.raises(SpecError, match="cannot be told from noise: 2 has fewer than 6"):
        gpumagic.compare(about(1.0), about(2.0, count=3), fail_above=0.1)
    with pytest.raises(SpecError, match="no ratio to a time of 0 s"):
        gpumagic.compare(timing(*[0.0] * 6), about(2.0), fail_above=0.1)
