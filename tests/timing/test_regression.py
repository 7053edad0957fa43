"""Slower than the stored result, beyond the noise: that fails, and nothing else does."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpumagic.errors import RegressionError, SpecError
from gpumagic.results import CudaTiming, Sample
from gpumagic.timing.regression import against, check


def timing(seconds: float, repeats: int = 9) -> CudaTiming:
    """Repeats around ``seconds``, 1 % apart from each other."""
    times = tuple(seconds * (1 + 0.01 * (place - repeats // 2)) for place in range(repeats))
    return CudaTiming(Sample(times), Sample(times), Sample(times))


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


@pytest.mark.parametrize(
    ("factor", "fails"),
    [
        (4.0, True),  # even the least that the median may be is beyond what is allowed
        (1.3, False),
        (0.2, None),  # even the most is not
    ],
)
def test_a_median_that_is_hardly_known_gives_no_verdict(factor: float, fails: bool | None) -> None:
    """On a busy machine unchanged code takes longer, and how much is not known."""
    spread = (0.7, 0.8, 0.9, 1.0, 1.1, 1.3, 1.6, 1.9, 2.2)
    times = Sample(tuple(factor * value for value in spread))
    now, before = CudaTiming(times, times, times), timing(1.0)
    compared = against(now, before)
    if fails:
        with pytest.raises(RegressionError):
            check(compared, 0.1)
    elif fails is None:
        assert check(compared, 0.1) is None
    else:
        says = check(compared, 0.1)
        assert says is not None
        assert says.startswith("--fail-above: no verdict, since the median is known to ±")
        # A slower entry by the ratio's interval alone does not fail.
        first, entry = compared
        slower = replace(entry, ratio=1.3, interval=(1.2, 1.6), verdict="slower")
        assert check(replace(compared, entries=(first, slower)), 0.1) == says


def test_too_few_repeats_cannot_tell() -> None:
    compared = against(timing(9.0, repeats=1), timing(1.0))
    assert compared["now"].verdict is None
    with pytest.raises(SpecError, match=r"too few repeats .*; write --repeat, or -r 2$"):
        check(compared, 0.1)
