"""Slower than the stored result, beyond the noise: that fails, and nothing else does."""

from __future__ import annotations

import pytest

from gpumagic.errors import RegressionError, SpecError
from gpumagic.results import CudaTiming, Sample
from gpumagic.timing.regression import against


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
    if fails:
        with pytest.raises(RegressionError, match=r"times as long as stored .*95 % interval"):
            against(timing(now), timing(1.0), fail_above=allowed)
    else:
        compared = against(timing(now), timing(1.0), fail_above=allowed)
        assert compared["now"].ratio == pytest.approx(now)


def test_too_few_repeats_cannot_tell() -> None:
    few = timing(9.0, repeats=1)
    assert against(few, timing(1.0))["now"].verdict is None
    with pytest.raises(SpecError, match="too few repeats"):
        against(few, timing(1.0), fail_above=0.1)
