"""Timings side by side: what is compared, and the guard against slowdowns."""

from __future__ import annotations

import json
import math
import random
import re
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest

import gpumagic
from gpumagic.errors import RegressionError, SpecError
from gpumagic.results.conditions import Conditions
from gpumagic.results.timing.cuda_timing import CudaTiming
from gpumagic.results.timing.sample import Sample


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


def gpu_bound(center: float, **options: Any) -> CudaTiming:
    return replace(about(center, **options), limited_by="gpu")


def test_faster_slower_and_neither() -> None:
    compared = gpumagic.compare(
        {"a": about(0.01), "b": about(0.005, seed=1), "c": about(0.01, seed=2), "d": about(0.02)}
    )
    assert [entry.verdict for entry in compared] == [None, "faster", "noise", "slower"]
    assert compared.baseline == "a"
    assert compared["b"].wall.value == pytest.approx(0.5, rel=0.02)
    low, high = compared["d"].wall.interval
    assert low <= compared["d"].wall.value <= high
    with pytest.raises(KeyError):
        _ = compared["x"]
    shown = str(compared)
    assert "faster (" in shown
    assert "within noise (" in shown
    assert "the wall time counts" in shown


HOST_BOUND = {
    # Of what people wait for, and of the GPU's work queued beforehand: each as long as before.
    "5 times on the wall": (5.0, 1.0, "slower", "5.00× slower"),
    "half on the wall": (0.5, 1.2, "faster", "2.00× faster"),
    "as long": (1.0, 1.0, "noise", "within noise"),
}


@pytest.mark.parametrize("name", HOST_BOUND)
def test_the_wall_time_counts_where_code_is_host_bound(name: str) -> None:
    wall, gpu, verdict, shown = HOST_BOUND[name]
    before = replace(about(0.001), wall=Sample((0.005,) * 11), limited_by="host")
    gpu_now = about(0.001 * gpu, seed=1)
    after = replace(gpu_now, wall=Sample((0.005 * wall,) * 11), limited_by="host")
    pair = {"before": before, "after": after}
    entry = gpumagic.compare(pair)["after"]
    assert (entry.quantity, entry.verdict) == ("wall", verdict)
    assert entry.wall.value == wall
    assert entry.gpu.value == pytest.approx(gpu, rel=0.02)
    slower = pytest.raises(RegressionError, match=r"after is slower .* by (wall|GPU) time")
    with slower if max(wall, gpu) > 1 else nullcontext():  # either is surely slower
        assert shown in str(gpumagic.compare(pair, fail_above=0.1))


def test_the_gpu_time_counts_where_both_are_gpu_bound() -> None:
    compared = gpumagic.compare({"a": gpu_bound(0.01), "b": gpu_bound(0.02), "c": about(0.02)})
    assert [entry.quantity for entry in compared] == ["wall", "gpu", "wall"]
    assert "for b the GPU's: both are GPU-bound" in str(compared)
    both = gpumagic.compare(gpu_bound(0.01), gpu_bound(0.02))
    assert "the GPU time counts: all are GPU-bound" in str(both)


def test_each_pair_by_itself() -> None:
    """A third timing without a GPU time, or with a bound, changes nothing for the others."""
    pair = {"a": gpu_bound(0.01), "b": gpu_bound(0.02, seed=1)}
    (alone,) = gpumagic.compare(pair)[1:]
    for third in (replace(about(0.01), gpu=None), replace(about(0.01), gpu_at_most=True)):
        compared = gpumagic.compare({**pair, "c": third})
        assert compared["b"] == alone
        assert (compared["c"].quantity, compared["c"].verdict) == ("wall", "noise")


def test_the_interval_is_that_of_the_two_medians() -> None:
    (_, entry) = gpumagic.compare(timing(*[1.0] * 5, 2.0), timing(3.0, *[4.0] * 5))
    assert entry.gpu.interval == (3.0 / 2.0, 4.0 / 1.0)


def test_the_interval_has_what_is_sure_of_each_repeat() -> None:
    exact = timing(*[1.0] * 6)
    loose = timing(*[2.0] * 6, gpu_at_least=Sample((1.9,) * 4 + (0.1,) * 2))
    (_, entry) = gpumagic.compare(exact, loose)
    assert entry.gpu.interval == (0.1, 2.0)


def test_a_busy_machine_is_no_difference() -> None:
    """Most repeats of the baseline were slowed down; the best of them are as fast."""
    (_, entry) = gpumagic.compare(timing(1.0, *[3.0] * 20), timing(*[1.0] * 21))
    assert (entry.gpu.verdict, entry.wall.verdict) == ("noise", "noise")
    assert entry.wall.interval[1] >= 1


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
    ("a", "b", "interval", "says"),
    [
        (0.01, (0.02, 0.005), (0.5, 2.0), "0.50–2.00 times"),
        (0.01, (0.02, None), (0.0, 2.0), "at most 2.00 times"),
        ((0.01, 0.008), 0.02, (2.0, 2.5), "2.00–2.50× slower"),
        ((0.01, None), 0.02, (2.0, None), "at least 2.00× slower"),
        (0.02, (0.01, None), (0.0, 0.5), "at least 2.00× faster"),
        ((0.01, None), (0.02, None), None, ""),
    ],
)
def test_what_bounds_leave_of_a_ratio(a: Any, b: Any, interval: Any, says: str) -> None:
    def bounded(value: Any) -> CudaTiming:
        if isinstance(value, float):
            return timing(*[value] * 6)
        upper, lower = value
        least = None if lower is None else Sample((lower,) * 6)
        return timing(*[upper] * 6, gpu_at_most=True, gpu_at_least=least)

    entry = gpumagic.compare({"a": bounded(a), "b": bounded(b)})["b"]
    assert (entry.quantity, entry.gpu.value, entry.gpu.interval) == ("wall", None, interval)
    assert entry.gpu.text == says


def test_an_open_end_is_null_in_json() -> None:
    """JSON has no infinity; the DataFrame has no figure there."""
    bound = timing(*[0.01] * 6, gpu_at_most=True, gpu_at_least=Sample((0.0,) * 6))
    compared = gpumagic.compare(bound, timing(*[0.02] * 6))
    plain = json.loads(compared.to_json(), parse_constant=pytest.fail)
    assert plain["entries"][1]["gpu"]["interval"] == [2.0, None]
    assert plain == json.loads(json.dumps(compared.to_dict()))
    with pytest.raises(ValueError, match="JSON"):
        replace(compared, notes=(math.nan,)).to_json()


def test_a_bound_can_prove_a_slowdown() -> None:
    base = timing(*[0.001] * 6)
    slow = timing(*[0.0029] * 6, gpu_at_most=True, gpu_at_least=Sample((0.00146,) * 6))
    slow = replace(slow, wall=base.wall)
    with pytest.raises(RegressionError, match=r"by GPU time: 1\.46.2\.90. slower \(allowed: 1\.1"):
        gpumagic.compare(base, slow, fail_above=0.1)
    gpumagic.compare(base, slow, fail_above=0.5)


def test_wall_times_that_are_bounds() -> None:
    """Python had returned after what the wall time is at least."""
    base = replace(timing(*[1.0] * 6, wall=1.0), gpu=None)
    for until, wall, verdict in ((0.1, 0.2, "faster"), (0.9, 1.1, None), (3.0, 4.0, "slower")):
        bound = replace(
            base, host=Sample((until,) * 6), wall=Sample((wall,) * 6), wall_at_most=True
        )
        entry = gpumagic.compare(base, bound)[1]
        assert (entry.wall.value, entry.verdict) == (None, verdict)
        assert entry.wall.interval == (until, wall)
        found = gpumagic.compare(bound, bound)[1]
        assert found.verdict is None
        assert "2: wall time: undecided" in str(gpumagic.compare(bound, bound, fail_above=0.1))
    with pytest.raises(RegressionError, match=r"by wall time: 3\.00.4\.00. slower"):
        gpumagic.compare(base, bound, fail_above=0.1)


def test_a_difference_below_the_resolution_of_events_is_noise() -> None:
    for loops, verdict in ((1, "noise"), (99, "slower")):
        one, other = timing(*[10.0e-6] * 6, loops=loops), timing(*[10.4e-6] * 6, loops=loops)
        assert gpumagic.compare({"a": one, "b": other})["b"].gpu.verdict == verdict


def test_too_few_repeats_are_said() -> None:
    compared = gpumagic.compare({"a": about(0.01), "b": about(0.02, count=5)})
    assert compared["b"].wall.value == pytest.approx(2.0, rel=0.03)
    assert compared["b"].verdict is compared["b"].wall.interval is None
    assert ", fewer than 6 repeats" in str(compared)
    zero = gpumagic.compare(timing(*[0.0] * 6), about(0.02))
    assert zero[1].wall.value is None
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


@pytest.mark.parametrize(
    ("now", "says"),
    [
        (about(1.05), ""),
        (about(0.5), ""),
        (about(1.1, spread=0.2), "2: wall time: undecided. It takes .* more repeats"),
        (
            timing(*[2.0] * 7, conditions=Conditions(devices={0: "H100"})),
            "not checked, as it was measured under other conditions: device H100 instead of A100",
        ),
    ],
)
def test_what_is_not_surely_slower_is_no_error(now: CudaTiming, says: str) -> None:
    base = timing(*about(1.0).wall.all, wall=1.1, conditions=Conditions(devices={0: "A100"}))
    shown = str(gpumagic.compare(base, now, fail_above=0.1))
    assert re.search(says, shown)
    assert says or "undecided" not in shown
    with pytest.raises(
        RegressionError, match=r"2 is slower than 1 by wall time: 1\..*allowed: 1.1"
    ):
        gpumagic.compare(base, about(1.3), fail_above=0.1)


def test_too_few_repeats_cannot_be_checked() -> None:
    for base, now in ((about(1.0), about(2.0, count=3)), (timing(*[0.0] * 6), about(2.0))):
        with pytest.raises(SpecError, match="cannot be told from noise"):
            gpumagic.compare(base, now, fail_above=0.1)
