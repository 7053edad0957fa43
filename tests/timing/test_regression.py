"""Slower than the stored result, beyond the noise: that fails, and nothing else does."""

from __future__ import annotations

import re
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from gpumagic.errors import RegressionError, SpecError
from gpumagic.results import Comparison, CudaTiming, Sample
from gpumagic.results.conditions import Conditions
from gpumagic.timing.comparison import compare
from gpumagic.timing.plan import Plan
from gpumagic.timing.ratio import enough, least_repeats
from gpumagic.timing.regression import check, enough_repeats


def timing(seconds: float, repeats: int = 9) -> CudaTiming:
    """Repeats around ``seconds``, 1 % apart from each other."""
    times = tuple(seconds * (1 + 0.01 * (place - repeats // 2)) for place in range(repeats))
    return CudaTiming(Sample(times), Sample(times), Sample(times))


def against(now: CudaTiming, before: CudaTiming) -> Comparison:
    return compare({"stored": before, "now": now})


@pytest.mark.parametrize(
    ("now", "allowed", "fails"),
    [
        (1.0, 0.1, False),
        (1.05, 0.1, False),
        (1.105, 0.1, False),  # beyond 10 %, but the interval's lower end is not
        (1.3, 0.1, True),
        (1.3, 0.5, False),
        (1.3, 0.0, True),
        (0.5, 0.0, False),
    ],
)
def test_only_what_is_slower_beyond_the_noise_fails(
    now: float, allowed: float, fails: bool
) -> None:
    compared = against(timing(now), timing(1.0))
    assert compared["now"].ratio == pytest.approx(now)
    if fails:
        with pytest.raises(RegressionError, match=r"times as long as stored .*95 % interval"):
            check(compared, allowed)
    else:
        check(compared, allowed)


@pytest.mark.parametrize(
    ("low", "allowed", "says"),
    [
        (
            1.0014,
            0.0,
            "1.010 times as long as stored (95 % interval 1.001 to 1.020; allowed: 1",
        ),
        (1.10004, 0.1, "interval 1.10004 to 1.02000; allowed: 1.10000"),
        (1.25, 0.1, "1.01 times as long as stored (95 % interval 1.25 to 1.02; allowed: 1.10)"),
        (
            1.25,
            0.005,
            "1.010 times as long as stored (95 % interval 1.250 to 1.020; allowed: 1.005)",
        ),
    ],
)
def test_the_bound_is_seen_to_be_beyond_what_is_allowed(
    low: float, allowed: float, says: str
) -> None:
    compared = against(timing(1.3), timing(1.0))
    first, entry = compared
    entry = replace(entry, ratio=1.01, interval=(low, 1.02))
    with pytest.raises(RegressionError) as raised:
        check(replace(compared, entries=(first, entry)), allowed)
    assert says in str(raised.value)


def test_a_median_that_is_hardly_known_decides_nothing_beside_the_interval() -> None:
    """The interval that is shown decides: it may be narrow where a median is not."""
    stored = Sample((1.0, 1.0, 1.0, 1.0, 1.0, 2.0, 2.0, 2.0, 2.0))
    now = Sample(tuple(2.5 * value for value in stored.all))
    compared = against(CudaTiming(now, now, now), CudaTiming(stored, stored, stored))
    low, high = compared["now"].interval or (0, 0)
    assert 1.1 < low < high
    with pytest.raises(RegressionError) as raised:
        check(compared, 0.1)
    assert f"2.50 times as long as stored (95 % interval {low:.2f} to {high:.2f}; " in str(
        raised.value
    )


@pytest.mark.parametrize(
    ("factor", "allowed", "verdict"),
    [(1.0, 0.1, False), (1.0, 0.0, True), (1.0, 2.0, True), (0.2, 0.1, True)],
)
def test_an_interval_too_wide_for_the_threshold_gives_no_verdict(
    factor: float, allowed: float, verdict: bool
) -> None:
    spread = (0.7, 0.8, 0.9, 1.0, 1.1, 1.3, 1.6, 1.9, 2.2)
    now, before = (Sample(tuple(f * value for value in spread)) for f in (factor, 1.0))
    compared = against(CudaTiming(now, now, now), CudaTiming(before, before, before))
    unknown = check(compared, allowed)
    if verdict:
        assert unknown is None
    else:
        low, high = compared["now"].interval or (0, 0)
        assert unknown is not None
        assert unknown.startswith(
            f"no verdict: the 95 % interval of the ratio, {low:.2f} to {high:.2f}, is too wide for "
            "1.10; more repeats"
        )


def on_host(seconds: float, cpu_wait: float | None) -> CudaTiming:
    """Code without GPU work, whose threads waited for a CPU for so long in each run."""
    sample = timing(seconds).wall
    waited = None if cpu_wait is None else Sample((cpu_wait,) * 9)
    return CudaTiming(None, sample, sample, host=sample, cpu_wait=waited)


@pytest.mark.parametrize(
    ("seconds", "cpu_wait", "fails"),
    [
        (2.0, 1.0, False),  # it took as long as before, but for the waiting
        (2.0, 0.74, False),  # behind each second of it the caches are cold
        (2.0, 0.70, True),  # more than the waiting and what is allowed
        (1.17, 0.005, True),  # little waiting, though beside little CPU time
        (1.17, 0.08, False),
        (2.0, 5.0, False),  # several threads waited
        (2.0, None, True),  # where it is not counted
    ],
)
def test_times_of_a_process_that_waited_for_a_cpu_give_no_verdict(
    seconds: float, cpu_wait: float | None, fails: bool
) -> None:
    compared = against(on_host(seconds, cpu_wait), on_host(1.0, 0.0))
    if fails:
        with pytest.raises(RegressionError, match="times as long as stored"):
            check(compared, 0.1)
    else:
        said = check(compared, 0.1)
        assert said is not None
        assert said.startswith("no verdict: the process waited for a CPU for up to ")
        assert said.endswith("may be the cause; measure again when the machine is less busy")


def test_the_waiting_is_said_as_a_part_of_the_wall_time() -> None:
    said = check(against(on_host(2.0, 1.0), on_host(1.0, 0.0)), 0.1)
    assert "for up to 50 % of the wall time, and" in str(said)
    said = check(against(on_host(2.0, 9.0), on_host(1.0, 0.0)), 0.1)
    assert "for up to 100 % of the wall time, and" in str(said)


def test_a_few_runs_that_waited_decide_nothing() -> None:
    """Their times are outliers; the others are slower without any waiting."""
    now = replace(on_host(2.0, None), cpu_wait=Sample((1.9, 0.0, 1.9, *(0.0,) * 6)))
    with pytest.raises(RegressionError):
        check(against(now, on_host(1.0, 0.0)), 0.1)


def test_work_of_the_gpu_is_delayed_only_until_the_code_returns() -> None:
    """Behind that the GPU waits for no launch, however long the process waits for a CPU."""
    now, before = on_host(2.0, 1.0), on_host(1.0, 0.0)
    with_gpu = against(
        replace(now, gpu=timing(2.0).gpu, host=timing(0.05).wall),
        replace(before, gpu=timing(1.0).gpu),
    )
    assert with_gpu.quantity == "gpu"
    with pytest.raises(RegressionError):
        check(with_gpu, 0.1)
    launching = replace(now, gpu=Sample(timing(2.0).wall.all[1:]))  # CUDA began in the first
    said = check(against(launching, replace(before, gpu=before.wall)), 0.1)
    assert said is not None
    assert said.startswith("no verdict: the process waited")


def on_a_host(now: CudaTiming, before: CudaTiming, slower: float) -> Comparison:
    """Compare, where a fixed piece of the host's work took so many times as long now."""
    speed = Conditions(host_speed=Sample((1e-4,) * 40))
    slow = Conditions(host_speed=Sample((slower * 1e-4,) * 40))
    return against(replace(now, conditions=slow), replace(before, conditions=speed))


@pytest.mark.parametrize(
    ("seconds", "slower", "fails"),
    [
        (2.0, 1.0, True),
        (2.0, 0.5, True),  # a faster host slows nothing down
        (2.0, 1.5, True),  # more than the host and what is allowed
        (2.0, 1.8, False),
        (2.0, 2.5, False),
        (1.2, 1.03, True),
        (1.2, 1.1, False),
    ],
)
def test_a_host_that_has_become_slower_gives_no_verdict(
    seconds: float, slower: float, fails: bool
) -> None:
    compared = on_a_host(on_host(seconds, 0.0), on_host(1.0, 0.0), slower)
    if fails:
        with pytest.raises(RegressionError, match="times as long as stored"):
            check(compared, 0.1)
    else:
        assert check(compared, 0.1) == (
            f"no verdict: the host is up to {slower:.2f} times as slow as for stored, and that may "
            "be the cause; measure again when the machine is less busy, or save it again"
        )


def test_a_speed_that_no_host_has_is_no_failure_of_the_comparison() -> None:
    compared = on_a_host(on_host(2.0, 0.0), on_host(1.0, 0.0), 1e18)  # a file may say anything
    assert "no verdict: the host is" in str(check(compared, 0.1))


def test_the_waiting_and_a_slower_host_are_the_cause_together() -> None:
    now, before = on_host(2.0, 0.4), on_host(1.0, 0.0)
    for slower, fails in ((1.0, True), (1.4, False)):
        compared = on_a_host(now, before, slower)
        if fails:
            with pytest.raises(RegressionError):
                check(compared, 0.1)
        else:
            assert "no verdict: the host is up to 1.40" in str(check(compared, 0.1))


def test_a_slower_host_explains_only_the_host_s_part_of_a_gpu_time() -> None:
    now, before = on_host(2.0, 0.0), replace(on_host(1.0, 0.0), gpu=timing(1.0).gpu)
    launching = replace(now, gpu=timing(2.0).gpu)
    assert "the host is" in str(check(on_a_host(launching, before, 2.0), 0.1))
    for known in (
        replace(launching, host=timing(0.05).wall),  # all was launched long before the end
        replace(launching, bound="gpu"),
    ):
        with pytest.raises(RegressionError):
            check(on_a_host(known, before, 2.0), 0.1)


def noisy(chance: Random, seconds: float, speeds: tuple[float, ...]) -> Sample:
    """Times on a host of these speeds, 1 % apart from each other, with a few outliers."""
    return Sample(
        tuple(
            seconds * speed * chance.gauss(1, 0.01) * (1.5 if chance.random() < 0.04 else 1)
            for speed in speeds
        )
    )


def verdicts(slower: float, speeds: tuple[float, ...], *, with_speed: bool = True) -> int:
    """Return how many of 50 comparisons fail, on a host that has one of the speeds each time."""
    chance, failed = Random(7), 0
    for _ in range(50):
        results = []
        for seconds in (1e-3, slower * 1e-3):
            speed = chance.choice(speeds)
            sample = noisy(chance, seconds, (speed,) * 15)
            beside = noisy(chance, 1e-4, (speed,) * 40)
            conditions = Conditions(host_speed=beside if with_speed else None)
            results.append(CudaTiming(None, sample, sample, conditions=conditions))
        try:
            check(against(results[1], results[0]), 0.1)
        except RegressionError:
            failed += 1
    return failed


def test_a_steady_host_still_shows_what_is_20_percent_slower() -> None:
    assert verdicts(1.2, (1.0,)) >= 45
    assert verdicts(1.0, (1.0,)) == 0


def test_a_host_of_changing_speed_fails_nothing_that_is_as_it_was() -> None:
    assert verdicts(1.0, (1.0, 1.4, 2.0), with_speed=False) >= 10
    assert verdicts(1.0, (1.0, 1.4, 2.0)) == 0


def test_too_few_repeats_cannot_tell() -> None:
    compared = against(timing(9.0, repeats=1), timing(1.0))
    assert compared["now"].verdict is None
    with pytest.raises(
        SpecError,
        match=r"noise: now has 1; compared with 9 repeats it takes 2 or more",
    ):
        check(compared, 0.1)
    with pytest.raises(
        SpecError, match=r"too few repeats .* noise: stored has 1; 4 or more of each"
    ):
        check(against(timing(9.0), timing(1.0, repeats=1)), 0.1)
    with pytest.raises(SpecError, match=r"noise: stored has 3, now has 2; 4 or more of each"):
        check(against(timing(9.0, repeats=2), timing(1.0, repeats=3)), 0.1)
    zero = Sample((0.0,) * 8)
    with pytest.raises(SpecError, match=r"there is no ratio to a time of 0 s: stored$"):
        check(against(timing(9.0), CudaTiming(zero, zero, zero)), 0.1)


@pytest.mark.parametrize("which", ["gpu", "wall"])
def test_a_stored_time_of_0_s_is_said_before_the_run(which: str) -> None:
    stored = replace(timing(1.0), **{which: Sample((0.0,) * 9)})
    with pytest.raises(SpecError, match=r"a time of 0 s, and there is no ratio .*; save it again$"):
        enough_repeats(Plan(repeat=9), stored)
    bound = replace(timing(1.0), gpu=Sample((0.0,) * 9), gpu_at_most=True)
    assert enough_repeats(Plan(repeat=9), bound) == Plan(repeat=9)


# From a script.


def test_a_script_has_the_guard_of_the_magic() -> None:
    stored, same, slower = timing(1.0), timing(1.0000001), timing(2.0)
    assert compare(stored, same, fail_above=0.2).notes == ()
    with pytest.raises(RegressionError, match=r"^2\.00 times as long as stored \(95 % interval"):
        compare({"stored": stored, "now": slower}, fail_above=0.2)
    with pytest.raises(RegressionError) as raised:
        compare({"a": stored, "b": same, "c": slower, "d": timing(3.0)}, fail_above=0.2)
    assert re.fullmatch(r"c: 2\.00 times .*; d: 3\.00 times .*", str(raised.value))
    with pytest.raises(SpecError, match="fail_above is -1, but must be 0 or more"):
        compare(stored, same, fail_above=-1)
    with pytest.raises(RegressionError, match=r"allowed: 1\.20"):
        compare(stored, slower, fail_above="20%")
    assert compare(stored, slower, fail_above="150 %").notes == ()
    with pytest.raises(SpecError, match="too few repeats"):
        compare(stored, timing(1.0, repeats=1), fail_above=0.2)


@pytest.mark.parametrize(
    ("fail_above", "says"),
    [
        ("much", "^fail_above: 'much' is not a percentage; write 10%$"),
        ("0.2", "^fail_above: 0.2 is 0.2 %; write that with its sign, or 10%$"),
        ([0.2], "^fail_above is no number, but list; 0.1 or '10%' allows 10 %$"),
        (True, "^fail_above is no number, but bool"),
        (float("nan"), "^fail_above is nan, but must be 0 or more"),
    ],
)
def test_what_allows_nothing_is_refused(fail_above: Any, says: str) -> None:
    with pytest.raises(SpecError, match=says):
        compare(timing(1.0), timing(1.0), fail_above=fail_above)


@pytest.mark.parametrize(
    "timings", [{"a": timing(1.0), "b": None}, {"a": 3, "b": timing(1.0)}, None]
)
def test_what_is_no_timing_is_refused(timings: Any) -> None:
    with pytest.raises(SpecError, match=r"compare\(\) compares timings, not (NoneType|int); "):
        compare(timings)


@pytest.mark.parametrize("stored", [3, 4, 5, 7, 9, 40])
def test_the_number_of_repeats_that_is_advised_is_enough_and_fewer_are_not(stored: int) -> None:
    """The cell and a script say the same."""
    least = least_repeats(stored)
    assert enough(stored) == f"compared with {stored} repeats it takes {least} or more (-r {least})"
    assert against(timing(2.0, least), timing(1.0, stored))["now"].verdict == "slower"
    if least == 1:
        return
    with pytest.raises(SpecError, match=rf"noise; {re.escape(enough(stored))}, or --repeat$"):
        enough_repeats(Plan(repeat=least - 1), timing(1.0, stored))
    few = against(timing(2.0, least - 1), timing(1.0, stored))
    assert few["now"].verdict is None
    if stored >= 4:
        assert few.notes[-1].endswith(enough(stored))


def test_a_script_does_not_fail_under_other_conditions_unless_strict() -> None:
    here = Conditions(devices={0: "H200"}, driver="570.12", torch="2.9.0", cuda="12.8")
    stored = replace(timing(1.0), conditions=here)
    slower = replace(timing(2.0), conditions=replace(here, devices={0: "T4"}))
    note = "measured under other conditions: device T4 instead of H200"
    assert compare(stored, slower, fail_above=0.2).notes == (
        f"{note}; fail_above was not applied, strict=True raises an error then",
    )
    with pytest.raises(RegressionError) as raised:
        compare(stored, slower, strict=True)
    assert str(raised.value) == "other conditions than 1: device T4 instead of H200"
    with pytest.raises(
        RegressionError, match=r"^2\.00 times as long as 1 .*; other conditions than 1"
    ):
        compare(stored, slower, fail_above=0.2, strict=True)


def test_why_there_is_no_verdict_is_a_note() -> None:
    compared = compare(on_host(1.0, 0.0), on_host(2.0, 1.0), fail_above=0.2)
    assert compared[1].verdict == "slower"
    assert compared.notes[-1].startswith("no verdict: the process waited")
